//! Every limit of the system in one place, with assertions on how they relate.

use crate::BLOCK_SIZE;

/// Blocks in the largest object: 64 MiB.
pub const OBJECT_BLOCKS_MAX: u32 = 16_384;

/// Blocks in a chunk, 512 KiB: a full leaf of the block map (128 entries of 20 bytes) fits one block.
pub const CHUNK_BLOCKS: u32 = 128;

/// Chunks in the largest object.
pub const OBJECT_CHUNKS_MAX: u32 = OBJECT_BLOCKS_MAX / CHUNK_BLOCKS;

/// Blocks that one request may carry, 1 MiB; clients split larger ones.
pub const REQUEST_BLOCKS_MAX: u32 = 256;

/// Blocks that one discard or write of zeroes may cover: a whole object.
pub const RANGE_BLOCKS_MAX: u32 = OBJECT_BLOCKS_MAX;

/// Bytes of a frame's typed head; a fabric map of a large fabric travels as a body instead.
pub const FRAME_HEAD_MAX: usize = 16 * 1024;

/// Bytes of a frame's body: the largest request, or a document such as the fabric map.
pub const FRAME_BODY_MAX: usize = 16 * 1024 * 1024;

/// Versions of the map that a manager keeps, to say what has changed since: a follower that is
/// further behind is sent its whole slice. They share what they have in common; followers are
/// behind by the few that came during one answer.
pub const MAP_VERSIONS_KEPT_MAX: usize = 64;

/// Versions of the map that have touched a target's slice since it was sent one, and that a manager keeps: a
/// target that is further behind is sent its whole slice.
pub const TOUCHES_KEPT_MAX: usize = MAP_VERSIONS_KEPT_MAX;

/// Parts in which drives keep the whole map.
pub const MAP_PARTS_MAX: u16 = 4096;

/// Bytes of the fabric map as pieces up to which volumes, groups, sessions and nodes are added. What is left
/// to [`PIECES_BYTES_MAX`] is for changes that have to fit always: evictions, returns, promotions, sweeps,
/// deletions, and drives that are found.
pub const MAP_BYTES_GROWN_MAX: usize = 96 << 20;

/// Likewise as JSON, as long as a target of the release before is there, which is sent the whole map: what
/// is left is to [`FRAME_BODY_MAX`].
pub const MAP_JSON_BYTES_GROWN_MAX: usize = 12 * 1024 * 1024;

/// Bytes of a slice in one request: a longer one is sent in several.
pub const SLICE_PART_BYTES: usize = 8 << 20;

/// Bytes of what one commit changes, as it is stored and sent: a lost node of 24 drives, a volume over 256
/// groups, a removed volume each take less than a tenth.
pub const DELTA_BYTES_MAX: usize = 1024 * 1024;

/// Bytes of such a change up to which it is one value of the manager's store. etcd takes 1.5 MiB per request.
pub const DELTA_WHOLE_BYTES_MAX: usize = 512 * 1024;

/// Bytes of the parts in which a longer one is stored.
pub const DELTA_PART_BYTES: usize = 256 * 1024;

/// Commits that one transaction of the manager's store keeps: each is a value and an event or two, and etcd
/// takes 128 of them in one.
pub const COMMITS_AT_ONCE_MAX: usize = 32;

/// Commits that are decided and not durable yet: as long as there are so many, nothing more is decided.
pub const COMMITS_AHEAD_MAX: usize = 1024;

/// Requests that one connection may have in flight; granted as credits by the handshake.
pub const CONNECTION_REQUESTS_MAX: u32 = 256;

/// Bytes of request bodies that one connection may have in flight; granted as credits by the handshake.
pub const CONNECTION_BYTES_MAX: u32 = 32 * 1024 * 1024;

/// Bytes that one thread owes to all connections of clients together: bodies of requests, and answers. With
/// what 1,024 connections hold besides, a process stays under 400 MiB. Credits are what one connection may
/// use of it at most.
pub const ROOM_BYTES_MAX: u64 = 256 << 20;

/// The least that it is on a machine with little memory: several of the longest bodies.
pub const ROOM_BYTES_MIN: u64 = 64 << 20;

/// Which part of the machine's memory all threads of a process owe at most: one of so many.
pub const ROOM_MEMORY_PARTS: u64 = 16;

/// Connections of one thread that have a little room of their own, which no other connection can take.
pub const ROOM_CONNECTIONS_MAX: usize = 1024;

/// Bytes that a request counts for besides its body and the data of its answer: its task and its head.
pub const ROOM_REQUEST_BYTES: u32 = 4096;

/// Connections through shared memory that one target has at a time: each has 32 MiB that may come to be used,
/// which no budget counts. The others go through sockets.
pub const SHARED_CONNECTIONS_MAX: usize = 64;

/// Requests in flight on one connection whatever the peer grants: their places in the table have 16 bits.
pub const LINK_REQUESTS_MAX: u32 = 1 << 16;

/// One-way requests of one connection that are carried out at once. No credit covers them; an honest peer
/// sends few, and loses nothing but a little time when one is dropped.
pub const ONE_WAY_REQUESTS_MAX: u32 = 64;

/// Connections that a listener has taken and that wait for their reader; at so many it stops: a few bursts'
/// worth. The others stay in the kernel's queue, where a connection costs no descriptor.
pub const ACCEPTED_CONNECTIONS_MAX: usize = 64;

/// Chunks of 64 KiB that a connection has received and that wait for their reader; at so many it stops: a
/// megabyte, a reader's largest message. The others stay in the socket's buffer, and hold up the peer.
pub const RECEIVED_CHUNKS_MAX: usize = 16;

/// Bytes of a name in a directory.
pub const FILE_NAME_BYTES_MAX: usize = 255;

/// Bytes of a symbolic link's target: Linux has paths of 4,096 bytes with the zero behind them.
pub const LINK_TARGET_BYTES_MAX: usize = 4095;

/// Bytes of an extended attribute's name (Linux: `XATTR_NAME_MAX`).
pub const XATTR_NAME_BYTES_MAX: usize = 255;

/// Bytes of an extended attribute's value (Linux: `XATTR_SIZE_MAX`).
pub const XATTR_VALUE_BYTES_MAX: usize = 65_536;

/// Bytes of all names of an inode's extended attributes (Linux: `XATTR_LIST_MAX`), a zero behind each.
pub const XATTR_NAMES_BYTES_MAX: usize = 65_536;

/// Bytes of all values of an inode's extended attributes: metadata is kept in memory.
pub const XATTRS_BYTES_MAX: usize = 1 << 20;

/// Names of a file.
pub const FILE_LINKS_MAX: u32 = 1 << 30;

/// Bytes of a file: as many objects as an object id counts, of the largest size.
pub const FILE_BYTES_MAX: u64 = (1 << 32) * OBJECT_BLOCKS_MAX as u64 * BLOCK_SIZE as u64;

/// Operations of one session that a metadata shard has not answered for good; at so many it refuses more
/// (F1).
pub const FILE_OPERATIONS_MAX: u64 = 256;

/// How long a mount may go by its leases after it has asked a server for recalls and was answered, in
/// milliseconds (F5).
pub const FILE_LEASE_MS: u64 = 4_000;

/// Locks that one mount has of a file. A file that is closed gives all of them back in one batch of the log,
/// a fifth of which they fill (F11).
pub const FILE_LOCKS_MAX: usize = 4096;

/// Programs of one mount that wait for locks in the kernel; half of [`FUSE_REQUESTS_MAX`], so that the others
/// go on.
pub const FUSE_LOCK_WAITS_MAX: usize = 512;

/// Names, and inodes, of which a mount keeps what it knows without asking: some 300 bytes each.
pub const KEPT_NAMES_MAX: u32 = 200_000;

/// Directories that a mount holds to read: a record of some 20 bytes each in the shard.
pub const DIRECTORY_LEASES_MAX: u32 = 16_384;

/// Recalls that one answer of a shard carries: the rest comes with the next one.
pub const RECALLS_MAX: u32 = 1024;

/// Bytes of a file that a mount has not written back yet; whoever writes more waits.
pub const WRITE_BACK_FILE_BYTES_MAX: u64 = 64 << 20;
/// Those of all files of a mount.
pub const WRITE_BACK_MOUNT_BYTES_MAX: u64 = 256 << 20;

/// Findings of a check that one answer of a shard carries, and bytes of each: with all of them a few hundred
/// KiB.
pub const CHECK_FINDINGS_MAX: u32 = 256;
/// See [`CHECK_FINDINGS_MAX`]. A finding may hold a name whose bytes are each written as four.
pub const CHECK_FINDING_BYTES_MAX: usize = 2048;

/// Sessions that one answer of a shard tells about: as many as a fabric has.
pub const SHARD_USERS_MAX: u32 = 16_384;

/// Operations that wait for others which one answer of a shard tells about.
pub const SHARD_WAITS_MAX: u32 = 1024;

/// Tables of a shard, with those of releases to come.
pub const SHARD_TABLES_MAX: u32 = 64;

/// Requests that one server of shards has begun and not answered: beyond it, clients are told to ask again.
pub const SHARD_REQUESTS_MAX: usize = 16_384;

/// Requests of the kernel for one mount that are under way; at so many no more are read, and their callers
/// wait in the kernel. Four times what the kernel sends for its own caches at once, so that programs have
/// their part.
pub const FUSE_REQUESTS_MAX: usize = 1024;

/// Names that lead from one shard to another in one answer: some 20 KiB.
pub const NAMES_ACROSS_MAX: u32 = 1024;

/// Quotas of one shard in one answer: some 70 KiB.
pub const QUOTAS_LISTED_MAX: u32 = 1024;

/// Inodes of which a shard is asked at once where their data may end, or what their names are.
pub const INODES_ASKED_MAX: u32 = 1024;

/// Entries of a directory in one answer: with names and attributes a few hundred KiB.
pub const LISTED_ENTRIES_MAX: u32 = 1024;

/// Blocks of one append to the log of a metadata shard: 1 MiB, one request of the volume.
pub const META_BATCH_BLOCKS_MAX: u32 = REQUEST_BLOCKS_MAX;

/// Readers of one executor that hold 256 KiB each at the same time, 16 MiB; the others hold 32 KiB. None
/// holds them while it waits for its stream, so the others miss little.
pub const READERS_AHEAD_MAX: usize = 64;

/// Operations of one executor that can be queued between two system calls; more cause one in between.
pub const SUBMISSIONS_MAX: u32 = 256;

/// Completions that can wait for one executor: what several connections may have in flight. Beyond that the
/// kernel keeps them aside (IORING_FEAT_NODROP), which is slower.
pub const COMPLETIONS_MAX: u32 = 4096;

/// Chunks in one answer about digests, 26 bytes each: the answer stays below a frame's head.
pub const DIGESTS_MAX: usize = 480;

/// Runs in one answer about what holds data, 24 bytes each: the answer stays below a frame's head.
pub const LISTED_RUNS_MAX: usize = 512;

/// Groups of which a target says in one answer what is open, and groups that close in one request: a head
/// holds it.
pub const FLOORS_MAX: usize = 256;
/// Sessions in one such answer, those of all groups together; groups beyond it are left out of the round.
pub const FLOOR_SESSIONS_MAX: usize = 100_000;

/// See [`FLOORS_MAX`].
pub const FLOORS_PER_ROUND_MAX: usize = 128;

/// Bytes of a document of pieces of the map, or of what a commit changed. The largest map that is planned
/// for, of a thousand machines with 24 drives each and 100,000 volumes, has some 40 MiB as one document.
pub const PIECES_BYTES_MAX: usize = 128 << 20;

/// How many versions a client may run ahead of its watermark in one group: bounds the open set.
pub const WATERMARK_LAG_MAX: u64 = 4096;

/// Entries that a session's own writes may leave open in one group on one drive. It is 16 times the versions
/// that a client may run ahead of its watermark, because a version that meets other writes in its range is
/// kept in several runs.
pub const OPEN_ENTRIES_MAX: usize = 16 * WATERMARK_LAG_MAX as usize;

/// The same with what readers and sweeps put: what clients leave on each of three replicas fits one.
pub const OPEN_ENTRIES_REPAIR_MAX: usize = 4 * OPEN_ENTRIES_MAX;

/// Bytes that writes may hold in memory after their callers gave them up: a few dozen of the largest
/// requests. A group without replicas would otherwise collect every write that times out on it.
pub const GIVEN_UP_BYTES_MAX: u64 = 64 << 20;

/// How far above its own clock a target accepts a version's counter: an hour in steps of 16 us (the unit of
/// `weft_wire::data::clock_counter`). A bad client cannot wedge a block, and no sane clock is off by as much.
pub const VERSION_AHEAD_MAX: u64 = 3_600_000_000 / 16;

/// By how many epochs an entry that a client or peer brings may be ahead: more changes than a group can see
/// while one of its members is away, and far from the end of the numbers, beyond which no map could lead
/// out.
pub const EPOCHS_AHEAD_MAX: u64 = 1 << 20;

/// Watermarks that came alone and wait for a gate to open, in one target: the newest of each session, group
/// and drive. A task and some hundred bytes each. What is beyond is dropped, which leaves entries open a
/// little longer.
pub const WATERMARKS_WAITING_MAX: usize = 4096;

/// Replicas of a mirror group.
pub const COPIES_MAX: usize = 3;

/// Volumes' and nodes' names, in bytes.
pub const NAME_BYTES_MAX: usize = 63;

/// Bytes of a client's name: a host name of DNS (RFC 1035, section 2.3.4) and a process beside it.
pub const CLIENT_NAME_BYTES_MAX: usize = 320;

/// Bytes of a drive's path, which goes into the map: Linux takes no longer one (`PATH_MAX`, limits.h).
pub const DRIVE_PATH_BYTES_MAX: usize = 4096;

/// Sessions that are open or not yet swept, in the whole fabric: the session slot has 16 bits, 0 is nobody's.
pub const SESSIONS_MAX: usize = 65_535;

/// Lanes of one session, each with a session slot of its own: what a client of many cores has use for.
pub const LANES_MAX: usize = 8;

/// Posts between two lanes of an attach that wait to be read: maps, and which targets answer. A lane that is
/// this far behind stands still, and is told of the newest map once it goes on.
pub const LANE_POSTS_MAX: usize = 64;

/// Operations that other threads have queued to one lane and that have not begun: four times what the lane
/// has in flight at most.
pub const LANE_QUEUED_MAX: usize = 4096;

/// Operations of other threads that one lane has in flight: with more, they only wait for each other.
pub const LANE_IN_FLIGHT_MAX: u64 = 1024;

/// Bytes of data of such operations in flight, 64 MiB: two of the largest.
pub const LANE_IN_FLIGHT_BYTES_MAX: u64 = 64 << 20;

/// Bytes of data of one such operation, 32 MiB: as much as one request of NBD.
pub const LANE_OPERATION_BYTES_MAX: u64 = 32 << 20;

/// Requests of one session of which the client knows what they wait for, for its log: more than are under
/// way at any time.
pub const REQUEST_WAITS_MAX: usize = 4096;

/// Sessions of which a manager remembers why they ended: their clients ask within seconds.
pub const ENDED_SESSIONS_MAX: usize = 1024;

/// Objects that a stripe runs over.
pub const STRIPE_WIDTH_MAX: u32 = 64;

/// Volumes that a trouble names at most: the status of a fabric with very many volumes stays readable, and is
/// made without holding up the manager.
pub const TROUBLE_VOLUMES_MAX: usize = 200;

/// Groups that one span lists at most: 256 groups of two or three copies keep hundreds of drives busy for one
/// volume, and bound a volume's part of the map to about 2 KiB where a fabric has thousands of groups.
pub const SPAN_GROUPS_MAX: usize = 256;

/// Spans of one volume, after which the last one goes on for ever: bounds a volume's part of the map however
/// often it grows. The last one that is made lists as many groups as a span can, so nothing is lost by it.
pub const VOLUME_SPANS_MAX: usize = 64;

/// Sets of groups of one file system. A set is added when drives were added or groups fill unevenly, some
/// times in a fabric's life, and never taken out: old files name it.
pub const SETS_MAX: usize = 64;

/// Shards of metadata of one file system: as many servers can share it. Inode numbers have room for 4,096.
pub const SHARDS_MAX: usize = 256;

/// Groups of the system volume of a shard. An attach of it waits for each drive that takes its writes, so
/// these are few; a shard's metadata is small.
pub const SYSTEM_VOLUME_GROUPS_MAX: usize = 4;

/// Events that a manager keeps, the oldest dropped first: some weeks of a small fabric, in a few megabytes
/// of memory and store. There is no limit by age: a clock that is set forward by mistake would empty the
/// list.
pub const EVENTS_MAX: usize = 5_000;

/// Characters of an event's text: an eviction names each group that it had to leave alone, and there may be
/// thousands.
pub const EVENT_CHARS_MAX: usize = 500;

/// Volumes, and nodes, and drives, that an event is filed under; its text says how many there are.
pub const EVENT_SUBJECTS_MAX: usize = 16;

/// Characters of a note among the events: it fits a line of a screen, and the legend of a chart.
pub const NOTE_CHARS_MAX: usize = 200;

/// Characters of who did something, in an event: enough for a user and a host.
pub const ACTOR_CHARS_MAX: usize = 80;

/// Sessions that a target lists when it says what load it has: the manager passes the lists of all targets
/// on in one frame of 16 MiB, and an entry has about a KiB. Beyond, those are listed that asked most.
pub const LOAD_SESSIONS_MAX: usize = 128;

/// Groups whose scrub one target leads at the same time: its thread reads and compares for all of them.
pub const SCRUBS_PER_TARGET_MAX: usize = 16;

/// Findings of one scrub that a target keeps for the manager; beyond, they are only counted. A drive that is
/// damaged all over is to be replaced, and no person reads a list of every block.
pub const SCRUB_FINDINGS_HELD_MAX: usize = 1000;

/// Findings of scrubs that the manager keeps for people: a few screens.
pub const SCRUB_FINDINGS_SHOWN_MAX: usize = 200;

/// Findings of one kind that a check of a drive tells one by one; more are only counted.
pub const DRIVE_CHECK_FINDINGS_MAX: usize = 100;

/// Findings of one kind on one drive that a check of the fabric tells one by one; the others are counted.
pub const FABRIC_CHECK_FINDINGS_MAX: usize = 8;

/// Parts of one volume that are listed as lost; the others are counted.
pub const LOSS_RANGES_MAX: usize = 256;

/// Nodes of another fabric that a manager remembers to have asked it: for people, who see from a few what
/// is wrong.
pub const FOREIGN_NODES_MAX: usize = 32;

/// Targets of a node, each a thread of its process: more than what the fastest machines need.
pub const TARGETS_PER_NODE_MAX: u32 = 64;

/// Targets that a client names at a time among those that answer it, and among those that do not. Of more
/// of them each client reaches only some.
pub const REACH_TARGETS_MAX: usize = 256;

/// Drives that one target serves.
pub const DRIVES_PER_TARGET_MAX: usize = 64;

/// How long a drive may complete nothing while something is asked of it, in seconds: then it hangs, and has
/// failed. Many times what a disk needs that tries a bad sector again and again (7 s is usual for drives in
/// arrays, minutes for others, which are better replaced than waited for).
pub const DRIVE_SILENCE_SECONDS_MAX: u64 = 10;

/// The smallest drive, 64 MiB: below it the log and the maps would leave no room for data.
pub const DRIVE_BYTES_MIN: u64 = 64 * 1024 * 1024;

/// Parts of a device, each a drive: what one device can do is worth a few threads.
pub const DEVICE_PARTS_MAX: usize = 8;

/// Extents of all parts of a device together: so many fit its label, which is one block.
pub const DEVICE_EXTENTS_MAX: usize = 230;

/// Connections that one NBD server has open at a time. Each may hold 64 MiB of data in flight, as far as
/// [`NBD_ROOM_BYTES_MAX`] goes, and a client rarely uses more than 16.
pub const NBD_CONNECTIONS_MAX: usize = 128;

/// Requests that one NBD connection may have in flight: twice what the Linux driver and fio keep by default
/// (128).
pub const NBD_CONNECTION_REQUESTS_MAX: u64 = 256;

/// Bytes of data that one NBD connection may have in flight, 64 MiB: two of the largest requests.
pub const NBD_CONNECTION_BYTES_MAX: u64 = 64 << 20;

/// Bytes of data that all connections of one NBD server may have in flight together: its thread owes no more
/// than others.
pub const NBD_ROOM_BYTES_MAX: u64 = ROOM_BYTES_MAX;

/// Bytes of the largest `NBD_CMD_READ` and `NBD_CMD_WRITE`, 32 MiB: the size that section "Block size
/// constraints" of the NBD protocol lets every client assume.
pub const NBD_REQUEST_BYTES_MAX: u32 = 32 << 20;

/// Bytes of a refused NBD write's data that are read and thrown away, 64 MiB: as much as libnbd sends in one
/// request. Behind a larger write the connection ends, which section "Block size constraints" allows for all
/// above the advertised size.
pub const NBD_REFUSED_BYTES_MAX: u32 = 64 << 20;

/// Bytes of the longest string: section "Conventions" of the NBD protocol (4096).
pub const NBD_STRING_BYTES_MAX: usize = 4096;

/// Bytes of an export's name: what NBD, whose names are the longest of all faces, allows.
pub const EXPORT_NAME_BYTES_MAX: usize = NBD_STRING_BYTES_MAX;

/// Bytes of an NBD option's data that are taken in: several strings of the longest kind. No client needs
/// more.
pub const NBD_OPTION_BYTES_MAX: u32 = 64 << 10;

/// Bytes of the text in an NBD error, well below the longest string: it ends up in a log line.
pub const NBD_ERROR_TEXT_BYTES_MAX: usize = 1024;

/// Extents in the answer to one NBD block status request, 8 KiB of them.
pub const NBD_STATUS_EXTENTS_MAX: usize = 1024;

/// Connections to one page of metrics that are served at the same time: a few servers of Prometheus, and
/// people.
pub const METRICS_CONNECTIONS_MAX: usize = 16;

/// Bytes of a request for metrics: several times what Prometheus sends.
pub const METRICS_REQUEST_BYTES_MAX: usize = 8 * 1024;

/// Headers of a request for metrics.
pub const METRICS_HEADERS_MAX: usize = 64;

const _: () = assert!(OBJECT_BLOCKS_MAX.is_multiple_of(CHUNK_BLOCKS));
const _: () = assert!(REQUEST_BLOCKS_MAX as usize * BLOCK_SIZE <= FRAME_BODY_MAX);
const _: () = assert!(MAP_BYTES_GROWN_MAX < PIECES_BYTES_MAX && MAP_JSON_BYTES_GROWN_MAX < FRAME_BODY_MAX);
const _: () = assert!(SLICE_PART_BYTES <= FRAME_BODY_MAX);
const _: () = assert!(DELTA_PART_BYTES <= DELTA_WHOLE_BYTES_MAX && DELTA_WHOLE_BYTES_MAX < DELTA_BYTES_MAX);
const _: () = assert!(DELTA_BYTES_MAX <= FRAME_BODY_MAX, "what a commit changes fits one frame");
const _: () = assert!(FRAME_BODY_MAX <= CONNECTION_BYTES_MAX as usize, "one frame must fit the credit");
const _: () = assert!(2 * FRAME_BODY_MAX as u64 <= ROOM_BYTES_MIN && ROOM_BYTES_MIN <= ROOM_BYTES_MAX);
const _: () = assert!(CONNECTION_BYTES_MAX as u64 <= ROOM_BYTES_MIN, "one connection fits the room");
const _: () = assert!(RANGE_BLOCKS_MAX <= OBJECT_BLOCKS_MAX);
const _: () = assert!(OBJECT_CHUNKS_MAX <= u16::MAX as u32);
const _: () = assert!(CHUNK_BLOCKS as usize * 20 + 512 < BLOCK_SIZE, "a full leaf fits one block");
const _: () =
    assert!(CONNECTION_REQUESTS_MAX <= LINK_REQUESTS_MAX, "what is granted has a place in the table");
const _: () = assert!(ONE_WAY_REQUESTS_MAX <= CONNECTION_REQUESTS_MAX);
const _: () = assert!(SUBMISSIONS_MAX <= COMPLETIONS_MAX, "what is submitted can complete");
const _: () = assert!(CONNECTION_REQUESTS_MAX <= COMPLETIONS_MAX);
const _: () = assert!(DIGESTS_MAX * 26 <= FRAME_HEAD_MAX, "an answer about digests is a head");
const _: () =
    assert!(LISTED_RUNS_MAX * 24 + 20 <= FRAME_HEAD_MAX, "an answer about what holds data is a head");
const _: () = assert!(WATERMARK_LAG_MAX as usize <= OPEN_ENTRIES_MAX);
const _: () =
    assert!(COPIES_MAX * OPEN_ENTRIES_MAX <= OPEN_ENTRIES_REPAIR_MAX, "what all replicas hold fits one");
const _: () = assert!(GIVEN_UP_BYTES_MAX >= 2 * CONNECTION_BYTES_MAX as u64);
const _: () = assert!(NAME_BYTES_MAX < CLIENT_NAME_BYTES_MAX && CLIENT_NAME_BYTES_MAX < FRAME_HEAD_MAX);
const _: () = assert!(DRIVES_PER_TARGET_MAX * DRIVE_PATH_BYTES_MAX < FRAME_BODY_MAX, "a join fits one frame");
const _: () = assert!(STRIPE_WIDTH_MAX as usize <= SPAN_GROUPS_MAX, "a stripe fits one span");
const _: () = assert!(SYSTEM_VOLUME_GROUPS_MAX <= SPAN_GROUPS_MAX);
const _: () = assert!(SETS_MAX <= u8::MAX as usize, "a layout of a file names its set in a byte");
const _: () = assert!(STRIPE_WIDTH_MAX <= u16::MAX as u32, "a layout of a file has 16 bits for it");
const _: () = assert!(NOTE_CHARS_MAX <= EVENT_CHARS_MAX && ACTOR_CHARS_MAX <= EVENT_CHARS_MAX);
const _: () =
    assert!(LOAD_SESSIONS_MAX * 1024 * 16 <= FRAME_BODY_MAX, "the lists of 16 targets fit one frame");
const _: () = assert!(SCRUB_FINDINGS_SHOWN_MAX <= SCRUB_FINDINGS_HELD_MAX);
const _: () = assert!(LANE_OPERATION_BYTES_MAX <= LANE_IN_FLIGHT_BYTES_MAX);
const _: () = assert!(NBD_REQUEST_BYTES_MAX as u64 * 2 <= NBD_CONNECTION_BYTES_MAX);
const _: () = assert!(NBD_REQUEST_BYTES_MAX <= NBD_REFUSED_BYTES_MAX);
const _: () =
    assert!(4 * NBD_REQUEST_BYTES_MAX as u64 <= NBD_ROOM_BYTES_MAX, "half of the room is in common");
const _: () = assert!(NBD_STRING_BYTES_MAX * 4 <= NBD_OPTION_BYTES_MAX as usize);
const _: () = assert!(NBD_ERROR_TEXT_BYTES_MAX <= NBD_STRING_BYTES_MAX);
const _: () = assert!(NBD_OPTION_BYTES_MAX <= NBD_REQUEST_BYTES_MAX);
