//! Targets of the NBD face: options, requests, and whole conversations with a server.

use weft_nbd::fuzzing;
use weft_nbd::protocol::*;
use weft_rt::sim::Sim;

/// Options of the handshake, one behind the other.
pub(crate) fn option(bytes: &[u8]) {
    fuzzing::options(bytes);
}

fn option_bytes(option: u32, data: &[u8]) -> Vec<u8> {
    [&option.to_be_bytes()[..], &(data.len() as u16).to_be_bytes(), data].concat()
}

fn meta_context() -> Vec<u8> {
    let query = BASE_ALLOCATION.as_bytes();
    [&[0, 0, 0, 1, b'a', 0, 0, 0, 1, 0, 0, 0, query.len() as u8], query].concat()
}

pub(crate) fn option_seeds() -> Vec<Vec<u8>> {
    let go = [0, 0, 0, 4, b'd', b'a', b't', b'a', 0, 2, 0, 1, 0, 3];
    vec![
        option_bytes(NBD_OPT_GO, &go),
        option_bytes(NBD_OPT_EXPORT_NAME, b"data"),
        [
            option_bytes(NBD_OPT_LIST, b""),
            option_bytes(NBD_OPT_INFO, &go),
            option_bytes(NBD_OPT_STRUCTURED_REPLY, b""),
            option_bytes(NBD_OPT_LIST_META_CONTEXT, &[0; 8]),
            option_bytes(NBD_OPT_SET_META_CONTEXT, &meta_context()),
            option_bytes(NBD_OPT_STARTTLS, b""),
            option_bytes(NBD_OPT_GO, &[0, 0, 0, 1, b'a', 0, 0]),
        ]
        .concat(),
        option_bytes(NBD_OPT_ABORT, b"bye"),
    ]
}

/// One request, on terms that the first byte says.
pub(crate) fn request(bytes: &[u8]) {
    fuzzing::request(bytes);
}

fn request_bytes(flags: u16, command: u16, offset: u64, length: u32) -> Vec<u8> {
    RequestHeader { flags, command, cookie: Cookie(7), offset, length }.encode().to_vec()
}

pub(crate) fn request_seeds() -> Vec<Vec<u8>> {
    let seed = |terms: u8, request: Vec<u8>| [&[terms][..], &request[4..]].concat();
    vec![
        seed(8, request_bytes(NBD_CMD_FLAG_DF, NBD_CMD_READ, 4096, 8192)),
        seed(0, request_bytes(NBD_CMD_FLAG_FUA, NBD_CMD_WRITE, 0, 32 << 20)),
        seed(3, request_bytes(NBD_CMD_FLAG_NO_HOLE, NBD_CMD_WRITE_ZEROES, u64::MAX - 8191, 4096)),
        seed(16, request_bytes(NBD_CMD_FLAG_REQ_ONE, NBD_CMD_BLOCK_STATUS, 512, 512)),
        seed(4, request_bytes(0, NBD_CMD_TRIM, 0, 4096)),
    ]
}

/// Everything that a client says on one connection.
pub(crate) fn conversation(bytes: &[u8]) {
    let bytes = bytes.to_vec();
    Sim::new(1).block_on(async move { fuzzing::conversation(&bytes).await });
}

pub(crate) fn conversation_seeds() -> Vec<Vec<u8>> {
    let requests = [
        request_bytes(0, NBD_CMD_READ, 0, 4096),
        [request_bytes(NBD_CMD_FLAG_FUA, NBD_CMD_WRITE, 4096, 512), vec![9; 512]].concat(),
        request_bytes(0, NBD_CMD_FLUSH, 0, 0),
        request_bytes(0, NBD_CMD_BLOCK_STATUS, 0, 65_536),
        request_bytes(0, NBD_CMD_WRITE_ZEROES, 8192, 4096),
        request_bytes(0, NBD_CMD_DISC, 0, 0),
    ]
    .concat();
    let mut greeting = vec![0, 0, 0, 0, 3];
    greeting.extend(IHAVEOPT.to_be_bytes());
    greeting.extend([0, 0, 0, 7, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0]);
    greeting.extend(&requests[..28]);
    vec![
        [&[1][..], &requests].concat(),
        [&[5][..], &requests].concat(),
        [&[7][..], &requests].concat(),
        greeting,
    ]
}
