//! What is different in two maps, for people: one line for each thing. It judges nothing.

use weft_types::{FabricMap, Group, Key, Role, Table};

/// What it takes to come from one map to the other, one sentence each; empty if they say the same. The maps' versions
/// are not compared.
pub fn diff(from: &FabricMap, to: &FabricMap) -> Vec<String> {
    let mut lines = Vec::new();
    if from.fabric != to.fabric {
        lines.push(format!("fabric {} becomes {}", from.fabric, to.fabric));
    }
    if from.durations != to.durations {
        lines.push(format!("settings {:?} become {:?}", from.durations, to.durations));
    }
    keyed(&mut lines, "node", &from.nodes, &to.nodes, |n| format!("'{}'", n.name));
    keyed(&mut lines, "target", &from.targets, &to.targets, |t| format!("of node {} at {}", t.node, t.addr));
    keyed(&mut lines, "pool", &from.pools, &to.pools, |p| format!("'{}'", p.name));
    keyed(&mut lines, "drive", &from.drives, &to.drives, |d| {
        format!("{:?}, {} on node {}, target {}, in pool {}", d.state, d.path, d.node, d.target, d.pool)
    });
    for drive in to.removed_drives.difference(&from.removed_drives) {
        lines.push(format!("drive {drive} counts as removed for good"));
    }
    for drive in from.removed_drives.difference(&to.removed_drives) {
        lines.push(format!("drive {drive} does not count as removed any more"));
    }
    keyed(&mut lines, "volume", &from.volumes, &to.volumes, |v| {
        format!("'{}', {} blocks, {}, {:?}, {}", v.name, v.size.0, v.protection, v.state, v.generation)
    });
    keyed(&mut lines, "group", &from.groups, &to.groups, members);
    for (id, relocation) in &to.relocations {
        if from.relocations.get(id) != Some(relocation) {
            lines.push(format!("group {id}: {} passes to {}", relocation.from, relocation.to));
        }
    }
    keyed(&mut lines, "session", &from.sessions, &to.sessions, |s| {
        format!("{:?} of {} on {}, {}", s.state, s.client, s.volume, s.mode)
    });
    if from.scrub != to.scrub {
        lines.push("when groups were scrubbed is different".into());
    }
    lines
}

fn members(group: &Group) -> String {
    let role = |r: Role| match r {
        Role::InSync => "in-sync",
        Role::Syncing => "syncing",
        Role::Out => "out",
    };
    let slots: Vec<String> =
        group.slots.iter().map(|s| format!("{} {}", s.drive.short(), role(s.role))).collect();
    format!("{}: {}", group.epoch, slots.join(", "))
}

/// Entries that are new, gone, or different.
fn keyed<K: Key + std::fmt::Display, V: Clone + PartialEq>(
    lines: &mut Vec<String>,
    kind: &str,
    from: &Table<K, V>,
    to: &Table<K, V>,
    show: impl Fn(&V) -> String,
) {
    for (key, old) in from.iter().filter(|(key, _)| !to.contains_key(key)) {
        lines.push(format!("{kind} {key} is gone ({})", show(old)));
    }
    for (key, new) in to {
        match from.get(key) {
            None => lines.push(format!("{kind} {key} is new ({})", show(new))),
            Some(old) if old != new && show(old) == show(new) => {
                lines.push(format!("{kind} {key} is different in detail ({})", show(new)));
            }
            Some(old) if old != new => {
                lines.push(format!("{kind} {key}: {} becomes {}", show(old), show(new)));
            }
            Some(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_types::{FabricId, NodeId, TargetId};

    #[test]
    fn what_is_new_gone_or_changed_is_told_and_nothing_else() {
        let mut old = FabricMap::empty(FabricId(1));
        old.put_node(NodeId(1), "a".into(), "h:1".into());
        old.put_node(NodeId(2), "b".into(), "h:2".into());
        assert!(diff(&old, &old).is_empty());
        let mut new = old.clone();
        new.version.0 += 9;
        assert!(diff(&old, &new).is_empty());
        new.nodes.remove(&NodeId(1));
        new.targets.remove(&TargetId(1));
        new.put_node(NodeId(2), "c".into(), "h:2".into());
        new.put_node(NodeId(3), "d".into(), "h:3".into());
        let lines = diff(&old, &new);
        assert_eq!(lines.len(), 5, "{lines:?}");
        let expected =
            ["is gone ('a'", "'b' becomes 'c'", "is new ('d'", "is gone (of", "is new (of node n3 at h:3"];
        assert!(lines.iter().zip(expected).all(|(line, part)| line.contains(part)), "{lines:?}");
    }
}
