"""What is told of a run: pairwise ratios and medians, as a text table, as Markdown, and as the JSON that both are made of.

A ratio is Weft's figure over the peer's in one round, in requests, calls or files per second: above 1 Weft is faster. Medians are of the
ratios of the rounds, not ratios of medians. Nothing here measures or starts anything: all is made of a recorded result.
"""

import dataclasses
import statistics

SCHEMA_VERSION = 1

# Below these a result is a try of the tool, not a measurement: a judgement.
QUOTABLE_SECONDS = 3
QUOTABLE_ROUNDS = 3




@dataclasses.dataclass(frozen=True)
class Kind:
    """What systems are compared as, as far as the tables differ."""

    rate: str  # the figure that ratios are of
    unit: str  # its unit, in a head
    words: str
    figures: list  # further figures of both sides: their heads, fields and forms


def count(value):
    """A number of three digits or more."""
    return "-" if value is None else f"{value:,.0f}"


def few(value):
    """A number that may be below 1."""
    return "-" if value is None else f"{value:.2f}"


KINDS = {
    "blocks": Kind("iops", "iops", "requests per second", [("p99 us", "p99_us", count), ("io/core", "iops_per_core", count)]),
    "files": Kind("per_second", "per s", "requests, calls or files per second",
                  [("MB/s", "mb_per_s", count), ("p50 us", "p50_us", count), ("cores", "cores", few)]),
}


def median(values):
    """The median of what is there; None of nothing."""
    values = [value for value in values if value is not None]
    return statistics.median(values) if values else None


def compare(rounds, rate="iops"):
    """What one workload says of one peer: medians of both sides, and of the ratio, with its lowest and highest."""
    ratios, per_core = [r["weft"][rate] / r["peer"][rate] for r in rounds], f"{rate}_per_core"
    result = {side: {key: median([r[side][key] for r in rounds]) for key in rounds[0][side]} for side in ("weft", "peer")}
    result["ratio"] = {"median": statistics.median(ratios), "lowest": min(ratios), "highest": max(ratios)}
    efficiency = [r["weft"][per_core] / r["peer"][per_core] for r in rounds if r["weft"][per_core] and r["peer"][per_core]]
    result["ratio_per_core"] = median(efficiency)
    return result


def is_quotable(result):
    """Whether the runs were long and many enough to be quoted."""
    run = result["run"]
    return run["seconds"] >= QUOTABLE_SECONDS and run["rounds"] >= QUOTABLE_ROUNDS and not run["interrupted"]


def text(result):
    """The tables for a terminal."""
    lines = []
    for peer in measured(result):
        lines += [f"Weft against {peer['name']}: {peer['title']}", *_peer_table(peer, _kind(result)), ""]
    if measured(result):
        lines += [f"Weft's {_kind(result).words} over the peer's: median of pairwise ratios; above 1 Weft is faster",
                  *_summary(result), ""]
    for peer in result["peers"]:
        if peer["state"] != "measured":
            lines.append(f"{peer['name']}: {_why_not(peer)}")
    lines += ["", "What was not equal", *(f"  {line}" for line in _common(result))]
    for peer in measured(result):
        lines += [f"  {peer['name']}", *(f"    - {sentence}" for sentence in peer["unequal"])]
    lines += ["", *_facts(result)]
    return "\n".join(lines) + "\n"


def markdown(result):
    """The tables for a document: ratios of all peers side by side, and Weft's own figures in the same run."""
    peers = measured(result)
    lines = []
    if peers:
        unit = _kind(result).unit.replace("iops", "IOPS")
        lines += _markdown_table(["workload", f"Weft, {unit}", *(p["name"] for p in peers)], _summary_rows(result))
        lines += ["", f"Weft's {_kind(result).words} over the peer's; above 1 Weft is faster. Medians of pairwise ratios of "
                  f"{result['run']['rounds']} rounds of {result['run']['seconds']:g} s, Weft and the peer in turn.", ""]
    for peer in peers:
        lines.append(f"- **{peer['name']}**: {peer['title']}; {peer['version']}. {' '.join(peer['unequal'])}")
    lines += [f"- **{p['name']}**: {_why_not(p)}." for p in result["peers"] if p["state"] != "measured"]
    lines += ["", *(f"{line}  " for line in [*_common(result), *_facts(result)])]
    return "\n".join(line if line.endswith("  ") and line.strip() else line.rstrip() for line in lines).rstrip() + "\n"


def measured(result):
    """The peers that have figures."""
    return [peer for peer in result["peers"] if peer["state"] == "measured"]


def _kind(result):
    """What systems were compared as. Results of before there were file systems do not say."""
    return KINDS[result["run"].get("as", "blocks")]


def _why_not(peer):
    if peer["state"] == "missing":
        return f"not installed: apt-get install --no-install-recommends {' '.join(peer['packages'])}"
    return f"failed, and is in no table: {peer['failure'].splitlines()[0]}"


def _peer_table(peer, kind):
    sides, rate = ("weft", "peer"), kind.rate
    head = ["workload", *(f"{side} {kind.unit}" for side in sides), "ratio", "lowest", "highest",
            *(f"{side} {name}" for name, _, _ in kind.figures for side in sides), "ratio/core"]
    rows = []
    for workload, rounds in peer["workloads"].items():
        c = compare(rounds, rate)
        rows.append([workload, *(count(c[side][rate]) for side in sides), *(_ratio(c["ratio"][of]) for of in ("median", "lowest", "highest")),
                     *(form(c[side][field]) for _, field, form in kind.figures for side in sides), _ratio(c["ratio_per_core"])])
    return _columns(head, rows)


def _summary_rows(result):
    rows, rate = [], _kind(result).rate
    for workload in result["run"]["workloads"]:
        cells, own = [], []
        for peer in measured(result):
            rounds = peer["workloads"].get(workload)
            cells.append(_ratio(compare(rounds, rate)["ratio"]["median"]) if rounds else "-")
            own += [r["weft"][rate] for r in rounds or []]
        rows.append([workload, count(median(own)), *cells])
    return rows


def _summary(result):
    return _columns(["workload", f"weft {_kind(result).unit}", *(p["name"] for p in measured(result))], _summary_rows(result))


def _common(result):
    run = result["run"]
    if _kind(result) is KINDS["files"]:
        return [
            f"All media are files of one tmpfs; direct data of one file of {run['volume_bytes'] >> 20} MiB, filled before anything was timed; "
            "one mount of each system; all processes and those that ask on one machine, over loopback, pinned to nothing.",
            "The system that is not being asked stays up, and idles, while the other is measured.",
            "What is looked at and opened was made by the same process just before: caches of the kernel and of clients may answer. Nothing is synced"
            " after tar: plain writes may be in caches when it ends.",
            "Weft: two nodes and a manager, over TCP; versions, log and end-to-end checksums on. A call that changes names, and a direct write,"
            " returns when it is on both drives' files; plain writes are in the mount's memory for a second or two, also after `close`."
            " Authentication and encryption are not on in any system.",
        ]
    return [
        f"All media are files of one tmpfs; volumes of {run['volume_bytes'] >> 20} MiB, filled before anything was timed; "
        "all processes and fio on one machine, over loopback, pinned to nothing.",
        "The system that is not being asked stays up, and idles, while the other is measured.",
        "Weft: two nodes and a manager; versions, log and end-to-end checksums on; a write is acknowledged when it is on both "
        "drives' files; authentication and encryption are not on in any system.",
    ]


def _facts(result):
    machine, run = result["machine"], result["run"]
    lines = [
        f"{machine['cores']} cores of {machine['cpu']}, {machine['memory_bytes'] / (1 << 30):.0f} GiB, Linux {machine['kernel']}, "
        f"TCP {machine['tcp_congestion_control']}, {machine['date']}",
        "; ".join([f"{run['weft_version']} (tree at {run['commit']})", run["fio_version"],
                   *(f"{p['name']}: {p['version']}" for p in measured(result))]),
        f"{run['rounds']} rounds of {run['seconds']:g} s; `{run['command']}`",
    ]
    if not is_quotable(result):
        lines.append("NOT TO BE QUOTED: runs too short, too few, or interrupted.")
    return lines


def _ratio(value):
    if value is None:
        return "-"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def _columns(head, rows):
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    return ["  " + "  ".join(cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths))).rstrip()
            for row in [head, *rows]]


def _markdown_table(head, rows):
    return [f"| {' | '.join(row)} |" for row in [head, ["---", *["---:"] * (len(head) - 1)], *rows]]
