//! Scripts of leaving and coming back: each line is a change or an expectation about the one group.
//!
//! ```text
//! drives a@1 b@2 c@3       drives with their nodes; the first line
//! copies 2                 how many of them, in order, make the group
//! evict a by b             evict drives; `by` names who acknowledged the intent; `at 3`: in an older epoch
//! rejoin a | promote a 3 | rebuild a -> c | replace a -> c | fail a | drain a
//! lose a b -> c            a and b are destroyed, and the group goes on with c; `lose a ~ c`: a is older than it was
//! relocate a -> c | hand over | finish 4 | cancel
//! demote a by b | depart a 3       a leaves the read set, and then the write set, in the stint that it knows
//! = e2 a:out@2 b:in-sync@1 the group's epoch and slots
//! ! text                   the line before was refused, with this in its text
//! ```

use std::collections::{BTreeMap, BTreeSet};
use weft_layout::FailureDomain;
use weft_membership::{
    AcceptLoss, Acknowledged, AddDrive, BeginRelocation, CancelRelocation, Change, CreatePool, Demote,
    Depart, DrainDrive, DriveFault, DriveObservation, Evict, FailDrive, FinishRelocation, GroupIndex,
    HandOver, JoinNode, KeepMember, Observations, Promote, Rebuild, Rejoin, Replace, SetDevice, Survivor,
    TargetObservation, apply, check, check_step, next_change, next_promotion, next_rebuild_on_one_node,
};
use weft_types::TargetId;
use weft_types::{
    BlockCount, DeviceId, DriveId, DriveState, Epoch, FabricId, FabricMap, Group, GroupId, NodeId, PoolId,
    Role, Slot,
};

const GROUP: GroupId = GroupId(1_000);

/// A drive is called by one letter.
fn drive(name: &str) -> DriveId {
    assert_eq!(name.len(), 1, "a drive is one letter, not '{name}'");
    DriveId(u128::from(name.as_bytes()[0]))
}

struct Script {
    map: FabricMap,
    refusal: Option<String>,
}

impl Script {
    fn new(drives: &str, copies: usize) -> Self {
        let mut script = Script { map: FabricMap::empty(FabricId(7)), refusal: None };
        script.apply(&Change::CreatePool(CreatePool { name: "p".into() }));
        let pool = PoolId(1);
        let mut nodes: BTreeMap<&str, NodeId> = BTreeMap::new();
        let members: Vec<(&str, &str)> =
            drives.split_whitespace().map(|d| d.split_once('@').expect("drive@node")).collect();
        for (name, node) in &members {
            if !nodes.contains_key(node) {
                let join = JoinNode { name: format!("node-{node}"), addr: format!("10.0.0.{node}:7000") };
                script.apply(&Change::JoinNode(join));
                nodes.insert(node, script.map.node_named(&format!("node-{node}")).expect("it joined").id);
            }
            let add = AddDrive {
                drive: drive(name),
                target: TargetId::first_of(nodes[node]),
                pool,
                path: format!("/dev/{name}"),
                capacity: BlockCount(1 << 20),
                device: None,
            };
            script.apply(&Change::AddDrive(add));
        }
        assert_eq!(script.refusal, None);
        let epoch = Epoch(1);
        let slots = members[..copies]
            .iter()
            .map(|(d, _)| Slot { drive: drive(d), role: Role::InSync, since: epoch })
            .collect();
        script.map.groups.insert(GROUP, Group { id: GROUP, pool, epoch, slots, floor: Default::default() });
        script.map.next_id = GROUP.0 + 1;
        script
    }

    fn apply(&mut self, change: &Change) {
        match apply(&self.map, change) {
            Ok((next, _)) => {
                assert_eq!(check(&next), [], "after {change:?}");
                assert_eq!(check_step(&self.map, &next), [], "by {change:?}");
                self.map = next;
                self.refusal = None;
            }
            Err(refusal) => self.refusal = Some(refusal.to_string()),
        }
    }

    fn group(&self) -> &Group {
        &self.map.groups[&GROUP]
    }

    fn state(&self) -> String {
        let group = self.group();
        let letter = |d: DriveId| char::from(d.0 as u8);
        let slots = group.slots.iter().map(|s| format!("{}:{}@{}", letter(s.drive), s.role, s.since.0));
        std::iter::once(group.epoch.to_string()).chain(slots).collect::<Vec<_>>().join(" ")
    }

    fn change(&self, words: &[&str]) -> Change {
        let set = |names: &[&str]| names.iter().map(|n| drive(n)).collect::<BTreeSet<_>>();
        let domain = FailureDomain::Node;
        match *words {
            ["depart", name, stint] => {
                let stint = Epoch(stint.parse().expect("an epoch"));
                let members = BTreeMap::from([(GROUP, BTreeMap::from([(drive(name), stint)]))]);
                Change::Depart(Depart { members })
            }
            [verb @ ("evict" | "demote"), ref rest @ ..] => {
                let by = rest.iter().position(|w| *w == "by").unwrap_or(rest.len());
                let at = rest.iter().position(|w| *w == "at");
                let epoch = at.map_or(self.group().epoch, |i| Epoch(rest[i + 1].parse().expect("an epoch")));
                let word = rest.get(by + 1).map(|by| (GROUP, Acknowledged { by: drive(by), epoch }));
                let (drives, acknowledged) = (set(&rest[..by]), word.into_iter().collect());
                match verb {
                    "evict" => Change::Evict(Evict { drives, acknowledged }),
                    _ => Change::Demote(Demote { drives, acknowledged }),
                }
            }
            ["rejoin", ref names @ ..] => {
                Change::Rejoin(Rejoin { drives: set(names), except: BTreeSet::new() })
            }
            ["promote", name, stint] => {
                let stint = Epoch(stint.parse().expect("an epoch"));
                Change::Promote(Promote { group: GROUP, drive: drive(name), stint })
            }
            ["rebuild", from, "->", to] => {
                Change::Rebuild(Rebuild { group: GROUP, from: drive(from), to: drive(to), domain })
            }
            ["replace", from, "->", to] => {
                Change::Replace(Replace { from: drive(from), to: drive(to), domain })
            }
            ["relocate", from, "->", to] => Change::BeginRelocation(BeginRelocation {
                group: GROUP,
                from: drive(from),
                to: drive(to),
                domain,
            }),
            ["lose", ref gone @ .., arrow, survivor] => {
                let survivor = drive(survivor);
                let is_member = self.group().slot_of(survivor).is_some();
                let survivor = if is_member { Survivor::Older(survivor) } else { Survivor::Empty(survivor) };
                let (destroyed, older) = match arrow {
                    "->" => (set(gone), BTreeSet::new()),
                    _ => (BTreeSet::new(), set(gone)),
                };
                let survivors = BTreeMap::from([(GROUP, survivor)]);
                Change::AcceptLoss(AcceptLoss { destroyed, older, survivors })
            }
            ["hand", "over"] => Change::HandOver(HandOver { group: GROUP }),
            ["finish", stint] => {
                let stint = Epoch(stint.parse().expect("an epoch"));
                Change::FinishRelocation(FinishRelocation { group: GROUP, stint })
            }
            ["keep", lost] => Change::KeepMember(KeepMember { group: GROUP, lost: drive(lost), domain }),
            ["cancel"] => Change::CancelRelocation(CancelRelocation { group: GROUP }),
            ["drain", name] => Change::DrainDrive(DrainDrive { drive: drive(name), on: true }),
            ["fail", name] => {
                Change::FailDrive(FailDrive { drive: drive(name), cause: "test".into(), of_device: false })
            }
            _ => panic!("no such line: {words:?}"),
        }
    }
}

/// Runs a script; every refusal must be expected by the next line.
fn run(text: &str) {
    let mut lines = text.lines().map(str::trim).filter(|l| !l.is_empty());
    let drives = lines.next().and_then(|l| l.strip_prefix("drives ")).expect("the first line names drives");
    let copies = lines.next().and_then(|l| l.strip_prefix("copies ")).expect("the second line is copies");
    let mut script = Script::new(drives, copies.parse().expect("a number"));
    let mut last = "the start";
    for line in lines {
        if let Some(text) = line.strip_prefix("! ") {
            let refusal = script.refusal.take().unwrap_or_else(|| panic!("'{last}' was not refused"));
            assert!(refusal.contains(text), "'{last}' was refused with: {refusal}");
            continue;
        }
        assert_eq!(script.refusal, None, "after '{last}'");
        match line.strip_prefix("= ") {
            Some(state) => assert_eq!(script.state(), state, "after '{last}'"),
            None => script.apply(&script.change(&line.split_whitespace().collect::<Vec<_>>())),
        }
        last = line;
    }
    assert_eq!(script.refusal, None, "after '{last}'");
}

#[test]
fn a_replica_leaves_and_comes_back() {
    run("drives a@1 b@2 c@3
         copies 3
         = e1 a:in-sync@1 b:in-sync@1 c:in-sync@1
         evict a by b
         = e2 a:out@2 b:in-sync@1 c:in-sync@1
         rejoin a
         = e3 a:syncing@3 b:in-sync@1 c:in-sync@1
         promote a 3
         = e4 a:in-sync@4 b:in-sync@1 c:in-sync@1");
}

#[test]
fn the_last_in_sync_member_stays_listed() {
    run("drives a@1 b@2
         copies 2
         evict a by b
         evict b by a
         ! no other in-sync member
         rejoin a
         evict b by a
         ! no other in-sync member
         evict a b by b
         ! no other in-sync member
         = e3 a:syncing@3 b:in-sync@1");
}

#[test]
fn an_eviction_needs_the_word_of_one_who_remains_in_this_epoch() {
    run("drives a@1 b@2 c@3 d@4
         copies 3
         evict a
         ! no in-sync member acknowledged
         evict a by a
         ! no in-sync member acknowledged
         evict a by d
         ! no in-sync member acknowledged
         evict a b by b
         ! no in-sync member acknowledged
         evict a by b
         evict b by c at 1
         ! no in-sync member acknowledged
         rejoin a
         evict c by a
         ! no in-sync member acknowledged
         evict c by b
         = e4 a:syncing@3 b:in-sync@1 c:out@4
         evict d by b
         ! nothing to evict");
}

#[test]
fn two_replicas_of_one_group_leave_in_one_epoch() {
    run("drives a@1 b@1 c@2
         copies 3
         evict a b by c
         = e2 a:out@2 b:out@2 c:in-sync@1
         rejoin a b
         = e3 a:syncing@3 b:syncing@3 c:in-sync@1");
}

#[test]
fn a_word_from_an_earlier_stint_promotes_nobody() {
    run("drives a@1 b@2
         copies 2
         promote a 1
         ! is in-sync, expected syncing
         evict a by b
         promote a 2
         ! is out, expected syncing
         rejoin a
         evict a by b
         rejoin a
         promote a 3
         ! is in the stint of e5, the report was about that of e3
         promote a 5
         = e6 a:in-sync@6 b:in-sync@1");
}

#[test]
fn a_lost_copy_is_rebuilt_on_another_node() {
    run("drives a@1 b@2 c@3 d@2 e@1
         copies 2
         rebuild a -> c
         ! is in-sync, expected out
         evict a by b
         rebuild a -> b
         ! already a member
         rebuild a -> d
         ! already holds a copy
         rebuild c -> d
         ! is not a member
         fail e
         rebuild a -> e
         ! marked as failed
         rebuild a -> c
         = e3 c:syncing@3 b:in-sync@1
         rejoin a
         ! none of the 1 drives is out
         promote c 3
         = e4 c:in-sync@4 b:in-sync@1
         replace a -> e
         ! not out of any group");
}

#[test]
fn a_new_drive_on_the_same_node_replaces_the_old_one() {
    run("drives a@1 b@2 c@1
         copies 2
         replace a -> c
         ! is in-sync, expected out
         fail a
         evict a by b
         rejoin a
         ! marked as failed
         replace a -> c
         = e3 c:syncing@3 b:in-sync@1
         evict b by c
         ! no other in-sync member
         promote c 3
         evict b by c
         = e5 c:in-sync@4 b:out@5");
}

#[test]
fn a_member_passes_to_another_drive_with_no_copy_less() {
    run("
        drives a@1 b@2 c@3 d@2
        copies 2
        relocate b -> c
        = e2 a:in-sync@1 b:in-sync@1 c:syncing@2
        relocate a -> d
        ! passing to drive
        hand over
        ! is syncing
        finish 1
        ! is syncing
        promote c 2
        = e3 a:in-sync@1 b:in-sync@1 c:in-sync@3
        finish 1
        ! is in-sync
        cancel
        ! is in-sync
        hand over
        = e4 a:in-sync@1 b:syncing@4 c:in-sync@3
        finish 3
        ! the report was about that of
        promote b 4
        = e5 a:in-sync@1 b:in-sync@5 c:in-sync@3
        hand over
        finish 6
        = e7 a:in-sync@1 c:in-sync@3
        finish 6
        ! no drive is passing
    ");
}

#[test]
fn what_dies_while_a_member_passes_to_another_drive_is_evicted_like_any_other() {
    run("
        drives a@1 b@2 c@3 d@2
        copies 2
        relocate b -> c
        evict c by a
        = e3 a:in-sync@1 b:in-sync@1 c:out@3
        rebuild c -> d
        ! passing to drive
        cancel
        = e4 a:in-sync@1 b:in-sync@1
        relocate b -> d
        = e5 a:in-sync@1 b:in-sync@1 d:syncing@5
        evict b by a
        = e6 a:in-sync@1 b:out@6 d:syncing@5
        rebuild b -> c
        ! passing to drive
        finish 6
        ! is syncing
        promote d 5
        finish 6
        = e8 a:in-sync@1 d:in-sync@7
    ");
}

#[test]
fn who_was_to_leave_stays_where_another_member_is_lost() {
    run("
        drives a@1 b@2 c@3 d@2
        copies 2
        relocate b -> c
        keep a
        ! is syncing
        promote c 2
        keep a
        ! is in-sync
        keep d
        ! not a member
        evict a by b
        = e4 a:out@4 b:in-sync@1 c:in-sync@3
        rebuild a -> d
        = e5 d:syncing@5 b:in-sync@1 c:in-sync@3
        keep d
        ! is syncing
        evict d by b
        keep d
        = e7 b:in-sync@1 c:in-sync@3
        keep b
        ! no drive is passing
    ");
    run("
        drives a@1 b@2 c@2
        copies 2
        relocate b -> c
        promote c 2
        evict a by b
        keep a
        ! node
    ");
}

#[test]
fn a_member_that_clients_cannot_reach_leaves_in_two_steps() {
    run("
        drives a@1 b@2 c@3
        copies 2
        depart a 1
        ! is in-sync, expected syncing
        demote a
        ! nothing to evict
        demote a by a
        ! no in-sync member acknowledged
        demote a b by b
        ! no other in-sync member
        demote a by b
        = e2 a:syncing@2 b:in-sync@1
        demote b by a
        ! no other in-sync member
        depart a 1
        ! was about that of
        depart a 2
        = e3 a:out@3 b:in-sync@1
        depart a 3
        ! is out
        rejoin a
        promote a 4
        = e5 a:in-sync@5 b:in-sync@1
    ");
    run("
        drives a@1 b@2
        copies 2
        demote a by b
        evict a by b
        = e3 a:out@3 b:in-sync@1
    ");
    run("
        drives a@1 b@2
        copies 2
        demote a by b
        promote a 2
        depart a 2
        ! is in-sync, expected syncing
    ");
}

/// What the manager sees: all of these drives serve.
fn all_serve(script: &Script, drives: &str) -> Observations {
    let mut seen = Observations::default();
    for name in drives.split_whitespace() {
        let node = TargetObservation { alive: true, fenced: false, heard_ms: 0 };
        seen.targets.insert(script.map.drives[&drive(name)].target, node);
        let serving = DriveObservation { present: true, failed: None, fenced: false, seen_ms: 0 };
        seen.drives.insert(drive(name), serving);
    }
    seen
}

#[test]
fn who_is_not_reached_leaves_stays_out_and_comes_back_when_that_is_over() {
    let mut script = Script::new("a@1 b@2 c@3", 2);
    let mut seen = all_serve(&script, "a b c");
    let next = |script: &mut Script, seen: &Observations| {
        let change = next_change(&script.map, &GroupIndex::of(&script.map), seen)?;
        script.apply(&change);
        assert_eq!(script.refusal, None);
        Some(script.state())
    };
    let word = |script: &Script| Acknowledged { by: drive("b"), epoch: script.group().epoch };
    seen.unreached.insert((GROUP, drive("a")), 0);
    assert_eq!(next(&mut script, &seen), None, "nobody has given a word");
    seen.acknowledged.insert((GROUP, drive("a")), word(&script));
    assert_eq!(next(&mut script, &seen).as_deref(), Some("e2 a:syncing@2 b:in-sync@1"));
    seen.verified.insert((GROUP, drive("a")), Epoch(2));
    assert_eq!(next(&mut script, &seen), None, "its target does not know; and it is not promoted");
    seen.yielded.insert((GROUP, drive("a")), Epoch(1));
    assert_eq!(next(&mut script, &seen), None, "it knows of an earlier stint");
    seen.yielded.insert((GROUP, drive("a")), Epoch(2));
    assert_eq!(next(&mut script, &seen).as_deref(), Some("e3 a:out@3 b:in-sync@1"));
    assert_eq!(next(&mut script, &seen), None, "it is not taken back");
    let rebuild_after_ms = script.map.durations.rebuild_after_ms;
    let mut late = seen.clone();
    late.now_ms = rebuild_after_ms;
    let rebuild = Change::Rebuild(Rebuild {
        group: GROUP,
        from: drive("a"),
        to: drive("c"),
        domain: FailureDomain::Node,
    });
    assert_eq!(
        next_change(&script.map, &GroupIndex::of(&script.map), &late),
        Some(rebuild),
        "it is made anew on a node that is reached"
    );
    seen.unreached.clear();
    assert_eq!(next(&mut script, &seen).as_deref(), Some("e4 a:syncing@4 b:in-sync@1"));
    seen.verified.insert((GROUP, drive("a")), Epoch(4));
    assert_eq!(next(&mut script, &seen).as_deref(), Some("e5 a:in-sync@5 b:in-sync@1"));
}

#[test]
fn copies_that_were_put_on_one_node_are_rebuilt_there_and_others_wait_for_a_node() {
    let gone = |script: &Script| {
        let mut seen = all_serve(script, "a b c");
        seen.now_ms = script.map.durations.rebuild_after_ms;
        let lost = DriveObservation { present: false, failed: None, fenced: true, seen_ms: 0 };
        seen.drives.insert(drive("a"), lost);
        seen
    };
    // The only other drive is on the node of the copy that is left; in the cases with two drives that share a device,
    // on its device, where the copies were apart, and where they were not.
    for (drives, on_one_device, rebuilt) in [
        ("a@1 b@1 c@1", "", Some(FailureDomain::Device)),
        ("a@1 b@2 c@2", "", None),
        ("a@1 b@1 c@1", "bc", None),
        ("a@1 b@1 c@1", "abc", Some(FailureDomain::Drive)),
    ] {
        let mut script = Script::new(drives, 2);
        for name in ["a", "b", "c"].into_iter().filter(|name| on_one_device.contains(name)) {
            let set = SetDevice { drive: drive(name), device: DeviceId(1) };
            script.apply(&Change::SetDevice(set));
        }
        let word = Acknowledged { by: drive("b"), epoch: Epoch(1) };
        let evict = Evict { drives: [drive("a")].into(), acknowledged: [(GROUP, word)].into() };
        script.apply(&Change::Evict(evict));
        assert_eq!(script.refusal, None);
        let before = script.map.clone();
        let next = next_change(&script.map, &GroupIndex::of(&script.map), &gone(&script));
        assert_eq!(
            next,
            next_rebuild_on_one_node(&script.map, &GroupIndex::of(&script.map), &gone(&script)),
            "{drives}"
        );
        assert_eq!(script.map, before);
        let rebuild = |domain| Rebuild { group: GROUP, from: drive("a"), to: drive("c"), domain };
        let expected = rebuilt.map(|domain| Change::Rebuild(rebuild(domain)));
        assert_eq!(next, expected, "{drives}, {on_one_device}");
    }
}

#[test]
fn a_member_is_taken_back_only_into_groups_in_which_it_is_reached() {
    let mut script = Script::new("a@1 b@2", 2);
    let other = GroupId(GROUP.0 + 1);
    script.map.groups.insert(other, Group { id: other, ..script.group().clone() });
    script.map.next_id += 1;
    let acknowledged =
        [GROUP, other].map(|group| (group, Acknowledged { by: drive("b"), epoch: Epoch(1) })).into();
    script.apply(&Change::Evict(Evict { drives: [drive("a")].into(), acknowledged }));
    let mut seen = all_serve(&script, "a b");
    seen.unreached.insert((GROUP, drive("a")), 0);
    let change =
        next_change(&script.map, &GroupIndex::of(&script.map), &seen).expect("the other group takes it back");
    script.apply(&change);
    assert_eq!(script.state(), "e2 a:out@2 b:in-sync@1");
    assert_eq!(script.map.groups[&other].slots[0].role, Role::Syncing);
    assert_eq!(next_change(&script.map, &GroupIndex::of(&script.map), &seen), None);
}

/// Three nodes of which one is lost: the two drives of a relocation stand on all that are left.
#[test]
fn a_member_that_is_lost_while_another_one_is_passing_does_not_hold_it_up_for_ever() {
    let mut script = Script::new("a@1 b@2 c@3", 2);
    for line in ["drain b", "relocate b -> c", "promote c 2", "evict a by b"] {
        script.apply(&script.change(&line.split_whitespace().collect::<Vec<_>>()));
        assert_eq!(script.refusal, None);
    }
    let seen = all_serve(&script, "b c");
    assert_eq!(next_change(&script.map, &GroupIndex::of(&script.map), &seen), None, "it may come back");
    script.apply(&script.change(&["fail", "a"]));
    let keep = Change::KeepMember(KeepMember { group: GROUP, lost: drive("a"), domain: FailureDomain::Node });
    assert_eq!(next_change(&script.map, &GroupIndex::of(&script.map), &seen), Some(keep.clone()));
    script.apply(&keep);
    assert_eq!(script.state(), "e5 b:in-sync@1 c:in-sync@3");
    assert_eq!(
        next_change(&script.map, &GroupIndex::of(&script.map), &seen),
        None,
        "b stays until there is another place"
    );
}

#[test]
fn a_drive_takes_over_only_where_it_can_stand() {
    run("
        drives a@1 b@2 c@1 d@2 e@3
        copies 2
        relocate b -> c
        ! node
        relocate b -> a
        ! already
        drain e
        relocate b -> e
        ! is being emptied
        relocate b -> d
        = e2 a:in-sync@1 b:in-sync@1 d:syncing@2
    ");
}

#[test]
fn who_has_handed_over_is_not_taken_back_unless_its_successor_dies() {
    let mut script = Script::new("a@1 b@2 c@3", 2);
    for line in ["drain b", "relocate b -> c", "promote c 2", "hand over"] {
        script.apply(&script.change(&line.split_whitespace().collect::<Vec<_>>()));
    }
    let mut seen = Observations::default();
    seen.verified.insert((GROUP, drive("b")), Epoch(4));
    assert_eq!(next_promotion(&script.map, &seen), None);
    script.apply(&script.change(&["evict", "c", "by", "a"]));
    assert_eq!(script.refusal, None);
    let back = Promote { group: GROUP, drive: drive("b"), stint: Epoch(4) };
    assert_eq!(next_promotion(&script.map, &seen), Some(Change::Promote(back)));
}

#[test]
fn a_lost_group_goes_on_with_what_is_left_and_with_nothing_else() {
    run("drives a@1 b@2 c@3
         copies 2
         lose a -> b
         ! not lost: drive
         evict a by b
         lose a -> b
         ! not lost: drive
         lose b -> b
         ! marked as failed or destroyed
         lose b -> c
         ! a member is left that was not declared destroyed
         lose b -> a
         = e3 a:in-sync@3 b:out@3
         rejoin b
         ! was declared destroyed
         rebuild b -> c
         = e4 a:in-sync@3 c:syncing@4
         evict a by c
         ! no other in-sync member");
}

#[test]
fn a_group_begins_anew_only_where_every_member_is_gone() {
    run("drives a@1 b@2 c@3 d@4
         copies 2
         evict a by b
         lose a b -> c
         = e3 c:in-sync@3 b:out@3
         lose c -> b
         ! marked as failed or destroyed
         rebuild b -> d
         promote d 4
         = e5 c:in-sync@3 d:in-sync@5");
}

#[test]
fn a_member_that_was_catching_up_begins_again_with_the_survivor() {
    run("drives a@1 b@2 c@3
         copies 3
         evict a by c
         evict b by c
         rejoin a b
         = e4 a:syncing@4 b:syncing@4 c:in-sync@1
         lose c -> a
         = e5 a:in-sync@5 b:syncing@5 c:out@5
         promote b 4
         ! stint
         promote b 5
         = e6 a:in-sync@5 b:in-sync@6 c:out@5");
}

#[test]
fn a_drive_that_is_older_than_it_was_is_taken_by_name_only() {
    run("drives a@1 b@2
         copies 2
         evict a by b
         lose b ~ b
         = e3 a:out@2 b:in-sync@3
         rejoin a
         = e4 a:syncing@4 b:in-sync@3");
}

#[test]
fn a_member_that_was_passing_to_another_drive_stays_where_it_is() {
    run("drives a@1 b@2 c@3
         copies 2
         evict b by a
         relocate a -> c
         = e3 a:in-sync@1 b:out@2 c:syncing@3
         lose a -> c
         = e4 b:out@2 c:in-sync@4");
}

#[test]
fn a_device_that_fails_is_emptied_in_one_commit_while_its_other_parts_count() {
    for (of_device, beside) in [(true, DriveState::Draining), (false, DriveState::Active)] {
        // `a` and `c` are on one device; `d`, on another node, says of its device what `a` says.
        let mut script = Script::new("a@1 b@2 c@1 d@3", 2);
        for (name, device) in [("a", 1), ("c", 1), ("d", 1)] {
            script.apply(&Change::SetDevice(SetDevice { drive: drive(name), device: DeviceId(device) }));
        }
        let mut seen = all_serve(&script, "a b c d");
        let fault = DriveFault { cause: "cannot flush".into(), of_device };
        let failed = DriveObservation { present: true, failed: Some(fault), fenced: true, seen_ms: 0 };
        seen.drives.insert(drive("a"), failed);
        let change = next_change(&script.map, &GroupIndex::of(&script.map), &seen).expect("it has failed");
        script.apply(&change);
        let state = |script: &Script, name| script.map.drives[&drive(name)].state;
        assert_eq!(state(&script, "a"), DriveState::Failed);
        assert_eq!(state(&script, "c"), beside);
        assert!(["b", "d"].iter().all(|name| state(&script, name) == DriveState::Active));
        // Then the other part meets the error itself.
        if of_device {
            let fault = DriveFault { cause: "cannot write".into(), of_device };
            let failed = DriveObservation { present: true, failed: Some(fault), fenced: true, seen_ms: 0 };
            seen.drives.insert(drive("c"), failed);
            let change =
                next_change(&script.map, &GroupIndex::of(&script.map), &seen).expect("it has failed");
            script.apply(&change);
            assert_eq!(state(&script, "c"), DriveState::Failed, "it is rebuilt at once, as any that fails");
        }
    }
}
