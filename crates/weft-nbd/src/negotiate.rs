//! The handshake: options until client and server agree on an export (section "Fixed newstyle negotiation").
//!
//! [`parse_option`] and [`Negotiation::answer`] are pure; [`negotiate`] moves the bytes. Nothing here touches
//! data.

use crate::connection::ReplyWriter;
use crate::error::ConnectionError;
use crate::protocol::*;
use std::rc::Rc;
use weft_client::export::{Export, Exports, Geometry};
use weft_rt::ByteReader;
use weft_types::limits::{NBD_OPTION_BYTES_MAX, NBD_REQUEST_BYTES_MAX, NBD_STRING_BYTES_MAX};
use weft_types::with_causes;

/// Bytes of zeroes after the answer to `NBD_OPT_EXPORT_NAME`, unless the client can do without.
const EXPORT_NAME_ZEROES: usize = 124;

/// What was agreed on.
pub(crate) struct Agreement {
    pub(crate) export: Rc<Export>,
    pub(crate) is_structured: bool,
    pub(crate) has_allocation: bool,
}

/// Talks with the client until it has chosen an export, or wants no more (`None`).
pub(crate) async fn negotiate(
    reader: &mut ByteReader,
    writer: &ReplyWriter,
    exports: &Exports,
) -> Result<Option<Agreement>, ConnectionError> {
    writer.head(|out| {
        out.extend(NBDMAGIC.to_be_bytes());
        out.extend(IHAVEOPT.to_be_bytes());
        out.extend((NBD_FLAG_FIXED_NEWSTYLE | NBD_FLAG_NO_ZEROES).to_be_bytes());
    });
    let Some(flags) = reader.next::<4>().await? else { return Ok(None) };
    let flags = u32::from_be_bytes(flags);
    // Section "Client flags": the server must drop a client that sets a flag it does not know.
    if flags & !(NBD_FLAG_C_FIXED_NEWSTYLE | NBD_FLAG_C_NO_ZEROES) != 0 {
        return Err(ConnectionError::ClientFlags { flags });
    }
    let mut negotiation = Negotiation::new(exports, flags & NBD_FLAG_C_NO_ZEROES != 0);
    loop {
        let Some(header) = reader.next::<{ OptionHeader::BYTES }>().await? else { return Ok(None) };
        let header = OptionHeader::parse(&header).map_err(ConnectionError::Magic)?;
        if header.length > NBD_OPTION_BYTES_MAX {
            writer.head(|out| {
                encode_option_reply(header.option, NBD_REP_ERR_TOO_BIG, b"the option is too large", out);
            });
            return Err(ConnectionError::OptionTooLarge { length: header.length });
        }
        let data = reader.take(header.length as usize).await?;
        let option = parse_option(header.option, &data);
        if let Ok(ClientOption::Info { name, .. } | ClientOption::ExportName(name)) = &option
            && let Some(export) = exports.find(name)
        {
            // An attach that is over must not be offered as if it worked.
            let standing = export.check().await;
            negotiation.over = standing.err().map(|error| with_causes(&error));
        }
        let mut replies = Vec::new();
        let step = negotiation.answer(header.option, option, &mut replies);
        writer.head(|out| out.extend(&replies));
        match step {
            Step::More => {}
            Step::Begin(agreement) => return Ok(Some(agreement)),
            Step::End => return Ok(None),
            Step::Refuse(name) => return Err(ConnectionError::NoSuchExport { name }),
        }
    }
}

/// An option, parsed fully.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ClientOption {
    ExportName(String),
    Abort,
    List,
    /// `NBD_OPT_INFO`, or `NBD_OPT_GO`, which also begins.
    Info {
        name: String,
        wanted: Vec<u16>,
        begin: bool,
    },
    StructuredReply,
    /// `NBD_OPT_LIST_META_CONTEXT`, or `NBD_OPT_SET_META_CONTEXT`, which also chooses.
    MetaContext {
        name: String,
        queries: Vec<String>,
        choose: bool,
    },
    /// What this server does not offer: encryption, 64-bit lengths, and whatever comes later.
    Unsupported,
}

/// Parses an option's data.
///
/// # Errors
/// A text that says what is wrong with it.
pub(crate) fn parse_option(option: u32, data: &[u8]) -> Result<ClientOption, &'static str> {
    let parsed = match option {
        NBD_OPT_EXPORT_NAME => return Ok(ClientOption::ExportName(text(data)?)),
        // Whatever a client sends along, it wants to leave.
        NBD_OPT_ABORT => return Ok(ClientOption::Abort),
        NBD_OPT_LIST => ClientOption::List,
        NBD_OPT_STRUCTURED_REPLY => ClientOption::StructuredReply,
        NBD_OPT_INFO | NBD_OPT_GO => return parse_info(data, option == NBD_OPT_GO),
        NBD_OPT_LIST_META_CONTEXT | NBD_OPT_SET_META_CONTEXT => {
            return parse_meta_context(data, option == NBD_OPT_SET_META_CONTEXT);
        }
        _ => return Ok(ClientOption::Unsupported),
    };
    if data.is_empty() { Ok(parsed) } else { Err("the option has no data") }
}

/// Name length, name, number of information requests, requests.
fn parse_info(data: &[u8], begin: bool) -> Result<ClientOption, &'static str> {
    const SHORT: &str = "the option's data end too early";
    let mut fields = Fields(data);
    let name = string(&mut fields)?;
    let count = fields.u16().ok_or(SHORT)?;
    let wanted = (0..count).map(|_| fields.u16()).collect::<Option<Vec<u16>>>().ok_or(SHORT)?;
    if !fields.0.is_empty() {
        return Err("there are bytes behind the option's data");
    }
    Ok(ClientOption::Info { name, wanted, begin })
}

/// Name length, name, number of queries, and for each its length and text.
fn parse_meta_context(data: &[u8], choose: bool) -> Result<ClientOption, &'static str> {
    let mut fields = Fields(data);
    let name = string(&mut fields)?;
    let count = fields.u32().ok_or("the option's data end too early")?;
    let mut queries = Vec::new();
    // The count is the client's word; the data bound it.
    for _ in 0..count {
        queries.push(string(&mut fields)?);
    }
    if !fields.0.is_empty() {
        return Err("there are bytes behind the option's data");
    }
    Ok(ClientOption::MetaContext { name, queries, choose })
}

fn string(fields: &mut Fields) -> Result<String, &'static str> {
    let length = fields.u32().ok_or("a string's length is missing")?;
    let bytes = fields.bytes(length as usize).ok_or("a string is longer than the option")?;
    text(bytes)
}

fn text(bytes: &[u8]) -> Result<String, &'static str> {
    if bytes.len() > NBD_STRING_BYTES_MAX {
        return Err("a string is longer than 4096 bytes");
    }
    String::from_utf8(bytes.to_vec()).map_err(|_| "a string is not UTF-8")
}

/// What the server does after its replies.
pub(crate) enum Step {
    More,
    Begin(Agreement),
    /// The client said goodbye.
    End,
    /// The client cannot be told in any other way that there is no such export.
    Refuse(String),
}

/// What has been negotiated so far.
pub(crate) struct Negotiation<'a> {
    exports: &'a Exports,
    no_zeroes: bool,
    is_structured: bool,
    /// The export for which `base:allocation` was chosen.
    allocation: Option<Rc<Export>>,
    /// Why the export that is asked for next cannot be used any more.
    pub(crate) over: Option<String>,
}

impl Negotiation<'_> {
    pub(crate) fn new(exports: &Exports, no_zeroes: bool) -> Negotiation<'_> {
        Negotiation { exports, no_zeroes, is_structured: false, allocation: None, over: None }
    }

    /// Answers an option: appends the replies, and says how it goes on.
    pub(crate) fn answer(
        &mut self,
        option: u32,
        parsed: Result<ClientOption, &'static str>,
        out: &mut Vec<u8>,
    ) -> Step {
        let mut reply = |kind: u32, data: &[u8]| encode_option_reply(option, kind, data, out);
        match parsed {
            // This option has no reply, so bad data cannot be answered either.
            Err(reason) if option == NBD_OPT_EXPORT_NAME => return Step::Refuse(format!("({reason})")),
            Err(reason) => reply(NBD_REP_ERR_INVALID, reason.as_bytes()),
            Ok(ClientOption::ExportName(name)) => return self.export_name(&name, out),
            Ok(ClientOption::Abort) => {
                reply(NBD_REP_ACK, &[]);
                return Step::End;
            }
            Ok(ClientOption::List) => {
                for export in self.exports.iter() {
                    let mut data = (export.name().len() as u32).to_be_bytes().to_vec();
                    data.extend(export.name().as_bytes());
                    data.extend(cut_text(&export.description()).as_bytes());
                    reply(NBD_REP_SERVER, &data);
                }
                reply(NBD_REP_ACK, &[]);
            }
            Ok(ClientOption::StructuredReply) => {
                self.is_structured = true;
                reply(NBD_REP_ACK, &[]);
            }
            Ok(ClientOption::Info { name, wanted, begin }) => {
                let Some(export) = self.info(option, &name, &wanted, out) else { return Step::More };
                if begin {
                    return Step::Begin(self.agree(export));
                }
            }
            Ok(ClientOption::MetaContext { name, queries, choose }) => {
                self.meta_context(option, &name, &queries, choose, out);
            }
            Ok(ClientOption::Unsupported) => {
                reply(NBD_REP_ERR_UNSUP, b"this server does not know the option")
            }
        }
        Step::More
    }

    fn export_name(&self, name: &str, out: &mut Vec<u8>) -> Step {
        match self.exports.find(name) {
            Some(export) if self.over.is_none() => {
                let geometry = export.geometry();
                out.extend(geometry.size.to_be_bytes());
                out.extend(transmission_flags(&geometry, self.is_structured).to_be_bytes());
                if !self.no_zeroes {
                    out.extend([0; EXPORT_NAME_ZEROES]);
                }
                Step::Begin(self.agree(export))
            }
            _ => Step::Refuse(name.to_owned()),
        }
    }

    /// Describes an export; `None` if it cannot be used.
    fn info(&self, option: u32, name: &str, wanted: &[u16], out: &mut Vec<u8>) -> Option<Rc<Export>> {
        let mut reply = |kind: u32, data: &[u8]| encode_option_reply(option, kind, data, out);
        let Some(export) = self.exports.find(name) else {
            reply(NBD_REP_ERR_UNKNOWN, self.unknown(name).as_bytes());
            return None;
        };
        if let Some(reason) = &self.over {
            reply(NBD_REP_ERR_SHUTDOWN, cut_text(reason).as_bytes());
            return None;
        }
        let mut info = |kind: u16, data: &[u8]| reply(NBD_REP_INFO, &[&kind.to_be_bytes(), data].concat());
        let geometry = export.geometry();
        let flags = transmission_flags(&geometry, self.is_structured);
        info(NBD_INFO_EXPORT, &[&geometry.size.to_be_bytes()[..], &flags.to_be_bytes()].concat());
        if wanted.contains(&NBD_INFO_NAME) {
            info(NBD_INFO_NAME, export.name().as_bytes());
        }
        if wanted.contains(&NBD_INFO_DESCRIPTION) {
            info(NBD_INFO_DESCRIPTION, cut_text(&export.description()).as_bytes());
        }
        // Also unasked: a client that does not look at it is no worse off.
        let sizes = [geometry.logical_block, geometry.physical_block, NBD_REQUEST_BYTES_MAX];
        info(NBD_INFO_BLOCK_SIZE, &sizes.map(u32::to_be_bytes).concat());
        reply(NBD_REP_ACK, &[]);
        Some(export)
    }

    /// Section "Metadata querying". A choice replaces the one before it, also where it fails.
    fn meta_context(&mut self, option: u32, name: &str, queries: &[String], choose: bool, out: &mut Vec<u8>) {
        if choose {
            self.allocation = None;
        }
        let mut reply = |kind: u32, data: &[u8]| encode_option_reply(option, kind, data, out);
        if !self.is_structured {
            return reply(NBD_REP_ERR_INVALID, b"structured replies must be negotiated first");
        }
        let Some(export) = self.exports.find(name) else {
            return reply(NBD_REP_ERR_UNKNOWN, self.unknown(name).as_bytes());
        };
        if queries.iter().any(|query| !query.contains(':')) {
            return reply(NBD_REP_ERR_INVALID, b"a query begins with a namespace and a colon");
        }
        // Listing, no query stands for all contexts and a bare namespace for all in it; choosing, neither does.
        let named = |query: &String| query == BASE_ALLOCATION || (!choose && query == "base:");
        if queries.iter().any(named) || (!choose && queries.is_empty()) {
            let id = if choose { BASE_ALLOCATION_ID } else { 0 };
            reply(NBD_REP_META_CONTEXT, &[&id.to_be_bytes()[..], BASE_ALLOCATION.as_bytes()].concat());
            if choose {
                self.allocation = Some(export);
            }
        }
        reply(NBD_REP_ACK, &[]);
    }

    fn agree(&self, export: Rc<Export>) -> Agreement {
        let has_allocation = self.allocation.as_ref().is_some_and(|chosen| Rc::ptr_eq(chosen, &export));
        Agreement { export, is_structured: self.is_structured, has_allocation }
    }

    fn unknown(&self, name: &str) -> String {
        match name {
            "" => "there is no default export: choose one by name".to_owned(),
            name => cut_text(&format!("there is no export '{name}'")).to_owned(),
        }
    }
}

/// Section "Transmission flags". Flags that only concern writes are left out where there are none.
pub(crate) fn transmission_flags(geometry: &Geometry, is_structured: bool) -> u16 {
    let always = NBD_FLAG_HAS_FLAGS
        | NBD_FLAG_SEND_FLUSH
        | NBD_FLAG_SEND_FUA
        | NBD_FLAG_CAN_MULTI_CONN
        | NBD_FLAG_SEND_CACHE;
    let writing = match geometry.is_read_only() {
        true => NBD_FLAG_READ_ONLY,
        false => NBD_FLAG_SEND_TRIM | NBD_FLAG_SEND_WRITE_ZEROES | NBD_FLAG_SEND_FAST_ZERO,
    };
    always | writing | if is_structured { NBD_FLAG_SEND_DF } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use weft_client::AttachMode;
    use weft_client::export::MemoryVolume;

    fn exports(names: &[&str]) -> Exports {
        let mut exports = Exports::new();
        for name in names {
            let volume = MemoryVolume::new(1 << 20, AttachMode::Shared);
            exports.add_memory(name, volume).unwrap();
        }
        exports
    }

    /// Answers an option given as bytes; the kinds and data of the replies.
    fn ask(negotiation: &mut Negotiation, option: u32, data: &[u8]) -> (Vec<(u32, Vec<u8>)>, Step) {
        let mut out = Vec::new();
        let step = negotiation.answer(option, parse_option(option, data), &mut out);
        let mut replies = Vec::new();
        let mut fields = Fields(&out);
        while !fields.0.is_empty() {
            assert_eq!(fields.bytes(8), Some(&NBD_REP_MAGIC.to_be_bytes()[..]));
            assert_eq!(fields.u32(), Some(option));
            let (kind, length) = (fields.u32().unwrap(), fields.u32().unwrap());
            replies.push((kind, fields.bytes(length as usize).unwrap().to_vec()));
        }
        (replies, step)
    }

    fn kinds(replies: &[(u32, Vec<u8>)]) -> Vec<u32> {
        replies.iter().map(|(kind, _)| *kind).collect()
    }

    fn string_of(text: &str) -> Vec<u8> {
        [&(text.len() as u32).to_be_bytes()[..], text.as_bytes()].concat()
    }

    fn go(name: &str, wanted: &[u16]) -> Vec<u8> {
        let wanted_bytes: Vec<u8> = wanted.iter().flat_map(|w| w.to_be_bytes()).collect();
        [string_of(name), (wanted.len() as u16).to_be_bytes().to_vec(), wanted_bytes].concat()
    }

    fn queries(name: &str, queries: &[&str]) -> Vec<u8> {
        let mut data = string_of(name);
        data.extend((queries.len() as u32).to_be_bytes());
        queries.iter().for_each(|q| data.extend(string_of(q)));
        data
    }

    #[test]
    fn go_describes_the_export_and_begins() {
        let exports = exports(&["a", "b"]);
        let mut negotiation = Negotiation::new(&exports, true);
        let (replies, step) =
            ask(&mut negotiation, NBD_OPT_GO, &go("b", &[NBD_INFO_NAME, NBD_INFO_DESCRIPTION, 77]));
        assert_eq!(kinds(&replies), [NBD_REP_INFO, NBD_REP_INFO, NBD_REP_INFO, NBD_REP_INFO, NBD_REP_ACK]);
        assert_eq!(replies[0].1[..10], [0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0]);
        assert_eq!(replies[1].1, [&[0, 1][..], b"b"].concat());
        assert_eq!(replies[3].1, [0, 3, 0, 0, 0x10, 0, 0, 0, 0x10, 0, 2, 0, 0, 0]);
        assert!(
            matches!(step, Step::Begin(a) if a.export.name() == "b" && !a.is_structured && !a.has_allocation)
        );
        let (replies, step) = ask(&mut negotiation, NBD_OPT_INFO, &go("a", &[]));
        assert_eq!(kinds(&replies), [NBD_REP_INFO, NBD_REP_INFO, NBD_REP_ACK]);
        assert!(matches!(step, Step::More));
    }

    #[test]
    fn what_does_not_exist_or_is_over_is_said() {
        let exports = exports(&["a", "b"]);
        let mut negotiation = Negotiation::new(&exports, true);
        let (replies, step) = ask(&mut negotiation, NBD_OPT_GO, &go("", &[]));
        assert!(kinds(&replies) == [NBD_REP_ERR_UNKNOWN] && matches!(step, Step::More));
        let (replies, step) = ask(&mut negotiation, NBD_OPT_EXPORT_NAME, b"c");
        assert!(replies.is_empty() && matches!(step, Step::Refuse(_)));
        for option in [NBD_OPT_STARTTLS, NBD_OPT_EXTENDED_HEADERS, 4, 9999] {
            assert_eq!(kinds(&ask(&mut negotiation, option, b"anything").0), [NBD_REP_ERR_UNSUP]);
        }
        negotiation.over = Some("fenced".into());
        let (replies, step) = ask(&mut negotiation, NBD_OPT_GO, &go("a", &[]));
        assert!(replies == [(NBD_REP_ERR_SHUTDOWN, b"fenced".to_vec())] && matches!(step, Step::More));
    }

    #[test]
    fn the_list_names_every_export() {
        let exports = exports(&["a", "b"]);
        let (replies, _) = ask(&mut Negotiation::new(&exports, true), NBD_OPT_LIST, b"");
        assert_eq!(kinds(&replies), [NBD_REP_SERVER, NBD_REP_SERVER, NBD_REP_ACK]);
        assert!(replies[1].1.starts_with(&[0, 0, 0, 1, b'b']));
        let (replies, _) = ask(&mut Negotiation::new(&exports, true), NBD_OPT_LIST, b"x");
        assert_eq!(kinds(&replies), [NBD_REP_ERR_INVALID]);
    }

    #[test]
    fn export_name_answers_with_zeroes_unless_the_client_can_do_without() {
        let exports = exports(&["a"]);
        for (no_zeroes, length) in [(true, 10), (false, 134)] {
            let mut out = Vec::new();
            let option = parse_option(NBD_OPT_EXPORT_NAME, b"");
            let step = Negotiation::new(&exports, no_zeroes).answer(NBD_OPT_EXPORT_NAME, option, &mut out);
            assert!(out.len() == length && matches!(step, Step::Begin(_)));
        }
    }

    #[test]
    fn contexts_are_chosen_for_one_export() {
        let exports = exports(&["a", "b"]);
        let negotiation = &mut Negotiation::new(&exports, true);
        let set = NBD_OPT_SET_META_CONTEXT;
        let early = ask(negotiation, set, &queries("a", &[BASE_ALLOCATION])).0;
        assert_eq!(kinds(&early), [NBD_REP_ERR_INVALID]);
        assert_eq!(kinds(&ask(negotiation, NBD_OPT_STRUCTURED_REPLY, b"").0), [NBD_REP_ACK]);
        let one = [NBD_REP_META_CONTEXT, NBD_REP_ACK];
        assert_eq!(kinds(&ask(negotiation, NBD_OPT_LIST_META_CONTEXT, &queries("a", &[])).0), one);
        assert_eq!(kinds(&ask(negotiation, NBD_OPT_LIST_META_CONTEXT, &queries("a", &["base:"])).0), one);
        assert_eq!(kinds(&ask(negotiation, set, &queries("a", &["x-other:y", BASE_ALLOCATION])).0), one);
        let begins = |n: &mut Negotiation, name| match ask(n, NBD_OPT_GO, &go(name, &[])).1 {
            Step::Begin(agreement) => agreement.has_allocation,
            _ => panic!("the export exists"),
        };
        assert!(begins(negotiation, "a"));
        assert!(!begins(negotiation, "b"));
        assert_eq!(kinds(&ask(negotiation, set, &queries("a", &["base:"])).0), [NBD_REP_ACK]);
        assert!(!begins(negotiation, "a"));
        assert_eq!(kinds(&ask(negotiation, set, &queries("a", &["nonsense"])).0), [NBD_REP_ERR_INVALID]);
        assert_eq!(kinds(&ask(negotiation, set, &queries("c", &[BASE_ALLOCATION])).0), [NBD_REP_ERR_UNKNOWN]);
    }

    #[test]
    fn lengths_that_lie_are_refused() {
        for option in [NBD_OPT_GO, NBD_OPT_INFO, NBD_OPT_LIST_META_CONTEXT, NBD_OPT_SET_META_CONTEXT] {
            for data in [&b""[..], &[0xff; 4], &[0, 0, 0, 1], &[0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]] {
                assert!(parse_option(option, data).is_err(), "{option} {data:?}");
            }
        }
        assert!(parse_option(NBD_OPT_GO, &[go("a", &[]), vec![0]].concat()).is_err());
        assert!(parse_option(NBD_OPT_EXPORT_NAME, &[b'x'; NBD_STRING_BYTES_MAX + 1]).is_err());
        assert!(parse_option(NBD_OPT_EXPORT_NAME, &[0xff]).is_err());
    }

    proptest! {
        #[test]
        fn random_options_never_panic_and_are_always_answered(
            option in 0u32..13, data in prop::collection::vec(any::<u8>(), 0..64), small: bool,
        ) {
            // Small numbers make lengths that sometimes fit.
            let data: Vec<u8> = data.into_iter().map(|b| if small { b % 4 } else { b }).collect();
            let exports = exports(&["a", "\u{1}"]);
            let mut negotiation = Negotiation::new(&exports, true);
            if option == NBD_OPT_EXPORT_NAME {
                // Its answer is no option reply: the export's description or nothing.
                let mut out = Vec::new();
                let step = negotiation.answer(option, parse_option(option, &data), &mut out);
                prop_assert_eq!(out.is_empty(), matches!(step, Step::Refuse(_)));
            } else {
                let (replies, step) = ask(&mut negotiation, option, &data);
                prop_assert!(!replies.is_empty());
                prop_assert!(!matches!(step, Step::End) || option == NBD_OPT_ABORT);
            }
        }
    }

    #[test]
    fn a_read_only_export_does_not_offer_to_write() {
        let geometry = |mode| Geometry { size: 1 << 20, logical_block: 4096, physical_block: 4096, mode };
        let writable = transmission_flags(&geometry(AttachMode::Shared), true);
        assert_ne!(writable & NBD_FLAG_SEND_TRIM, 0);
        assert_eq!(writable & NBD_FLAG_READ_ONLY, 0);
        let read_only = transmission_flags(&geometry(AttachMode::ReadOnly), false);
        assert_ne!(read_only & NBD_FLAG_READ_ONLY, 0);
        assert_eq!(read_only & (NBD_FLAG_SEND_TRIM | NBD_FLAG_SEND_WRITE_ZEROES | NBD_FLAG_SEND_DF), 0);
    }
}
