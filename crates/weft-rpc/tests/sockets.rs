//! Requests and answers over the sockets of this machine.

use std::rc::Rc;
use weft_rpc::{Answer, Greeter, Link, Peer, Request, Server, Service, Services};
use weft_rt::sync::join_all;
use weft_rt::{Addr, Buf, Listener, block_on, spawn};
use weft_types::FabricId;
use weft_wire::Kind;
use weft_wire::handshake::{Hello, PeerRole};

struct Echo;

impl Greeter for Echo {
    fn greet(&self, _: &Hello) -> Result<Option<FabricId>, String> {
        Ok(None)
    }
}

impl Service for Echo {
    async fn handle(self: Rc<Self>, _: Rc<Peer>, request: Request) -> Answer {
        Answer::ok(request.head.to_vec(), vec![request.body])
    }
}

async fn talk(addr: Addr) {
    let listener = Listener::bind(&addr).unwrap();
    let addr = listener.local_addr();
    assert!(Listener::bind(&addr).is_err(), "in use");
    spawn(Server::run(listener, Services::one(Rc::new(Echo))));
    let hello = Hello::new(PeerRole::Client, None, "test");
    let links = join_all((0..3).map(|_| Link::connect(&addr, &hello))).await;
    let calls = (0..10_000usize).map(|i| {
        let link = links[i % 3].as_ref().unwrap().clone();
        async move {
            let body = Buf::from(vec![
                i as u8;
                if i % 97 == 0 { [100, 4096, 70_000, 1 << 20][i % 4] } else { i % 50 }
            ]);
            let answer = link.call(Kind::Read, &i.to_le_bytes(), vec![body.clone()]).await.unwrap();
            assert_eq!((&answer.head[..], &answer.body[..]), (&i.to_le_bytes()[..], &body[..]));
        }
    });
    join_all(calls).await;
}

#[test]
fn requests_are_answered_over_tcp_and_unix_sockets() {
    let path = std::env::temp_dir().join(format!("weft-rpc-{}.sock", std::process::id()));
    let of_talk = path.clone();
    block_on(async move {
        talk("127.0.0.1:0".parse().unwrap()).await;
        // A file that nobody listens at is what a killed process leaves.
        drop(std::os::unix::net::UnixListener::bind(&of_talk).unwrap());
        talk(format!("unix:{}", of_talk.display()).parse().unwrap()).await;
    })
    .unwrap();
    let _ = std::fs::remove_file(&path);
}
