"""Which layer a sample of a profile belongs to, told by the names on its stack.

A stack is walked from where the processor was, outwards; the first name that says something decides. So a copy inside of
the store is a copy, and whatever the store calls that has no name of its own is the store's.
"""

import re

WAITING = "looking for work"
COPY_KERNEL = "kernel: copies"
NETWORK = "kernel: network"
SCHEDULER = "kernel: waking and sleeping"
KERNEL = "kernel: system calls, io_uring, rest"
COPY = "copies"
CHECKSUM = "checksums"
MEMORY = "allocation"
CLOCK = "clocks"
STORE = "store"
TARGET = "target: admission, serving"
CLIENT = "client: protocol, volume"
RUNTIME = "runtime, frames, connections"
LOAD = "the load itself"
OTHER = "other"

# The layers of a table, in its order: what is done, then what moves it, then what waits.
LAYERS = [LOAD, CLIENT, TARGET, STORE, CHECKSUM, COPY, MEMORY, CLOCK, RUNTIME, COPY_KERNEL, NETWORK, SCHEDULER, KERNEL, OTHER,
          WAITING]

# What a name says, of the kernel and of everything else; the first that matches counts.
_OF_KERNEL = [
    (COPY_KERNEL, re.compile(r"copy_(to|from)_(iter|user)|clear_page|memcpy|rep_movs|copy_page")),
    (SCHEDULER, re.compile(r"schedule$|try_to_wake_up|ttwu|wake_up|finish_task_switch|sock_def_readable|futex|_idle|"
                           r"io_cqring_wait$|hrtimer|dequeue|enqueue_task|pick_next")),
    (NETWORK, re.compile(r"^_*(tcp|ip|inet|sock|skb|net|napi|netif|dev|unix|kfree_skb|alloc_skb|lock_sock|release_sock|"
                         r"sk|nf|process_backlog|loopback|validate_xmit|bbr|eth)(_|$)")),
]
_OF_OTHERS = [
    (COPY, re.compile(r"mem(cpy|move|set)")),
    (CHECKSUM, re.compile(r"crc32|crc_fast|mm_crc")),
    (MEMORY, re.compile(r"^_?mi_|malloc|^free$|^_?_?rust_alloc|^_?_?rust_dealloc|^alloc::raw_vec")),
    (CLOCK, re.compile(r"clock_gettime")),
    (STORE, re.compile(r"weft_store::")),
    (TARGET, re.compile(r"weft_target::")),
    (CLIENT, re.compile(r"weft_client::")),
    (LOAD, re.compile(r"weft_bench::")),
    (RUNTIME, re.compile(r"weft_rt::|weft_rpc::|weft_wire::")),
]

# Looks for completions and for news, again and again, as long as there are none; and reaps them, which is little.
_LOOKS = re.compile(r"weft_rt::uring::Driver::turn$|shm::Endpoint.*::is_ready")


def layer_of(stack):
    """The layer of a stack: pairs of a name and whether it is the kernel's, the innermost first."""
    is_system_call = False
    for name, is_kernel in stack:
        if is_kernel:
            is_system_call = True
            said = _first(_OF_KERNEL, name)
        elif is_system_call:
            return KERNEL
        elif _LOOKS.search(name):
            return WAITING
        else:
            said = _first(_OF_OTHERS, name)
            if said == CLOCK and _asks_while_waiting(stack):
                return WAITING
        if said:
            return said
    return KERNEL if is_system_call else OTHER


def _first(rules, name):
    return next((layer for layer, pattern in rules if pattern.search(name)), None)


def _asks_while_waiting(stack):
    callers = [name for name, _ in stack if not _first([(CLOCK, _OF_OTHERS[3][1])], name)]
    return bool(callers) and bool(_LOOKS.search(callers[0]))


def stacks_of(lines):
    """The stacks in what `perf script --no-inline -F ip,sym,dso` prints."""
    stack = []
    for line in lines:
        words = line.split(None, 1)
        if len(words) == 2:
            name, _, place = words[1].strip().rpartition(" (")
            stack.append((re.sub(r"\+0x[0-9a-f]+$", "", name), place.startswith("[") and not place.startswith("[vdso")
                          and not place.startswith("[unknown")))
        elif stack:
            yield stack
            stack = []
    if stack:
        yield stack


def per_request(stacks, samples_per_s, requests):
    """Nanoseconds of a processor for each request, by layer."""
    times = dict.fromkeys(LAYERS, 0.0)
    for stack in stacks:
        times[layer_of(stack)] += 1e9 / samples_per_s / requests
    return times


def counts_of(lines):
    """What each function counts by itself, in what callgrind writes: pairs of a name and a number.

    A name is written once, behind a number that stands for it from there on; the line behind `calls=` is what the called
    function counts, and is in that one's own lines as well.
    """
    names, name, is_of_callee = {}, None, False
    for line in lines:
        said = re.match(r"(c?fn)=\((\d+)\)(?: (.*))?$", line)
        if said:
            kind, number, text = said.groups()
            if text:
                names[number] = re.sub(r"'\d+$", "", text)
            if kind == "fn":
                name = names[number]
        elif line.startswith("calls="):
            is_of_callee = True
        elif re.match(r"[+-]?\d+ \d+$|\* \d+$", line):
            if not is_of_callee and name is not None:
                yield name, int(line.split()[-1])
            is_of_callee = False
