//! Connections through shared memory between two threads that know nothing of each other but an address, as
//! two processes of one machine would.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;
use weft_rpc::shm::set_shared_memory;
use weft_rpc::*;
use weft_rt::*;
use weft_types::FabricId;
use weft_wire::Kind;
use weft_wire::handshake::{Hello, PeerRole};

/// Keeps what it is told, and answers with it, reversed.
#[derive(Default)]
struct Reverse(RefCell<Vec<Buf>>);

impl Greeter for Reverse {
    fn greet(&self, hello: &Hello) -> Result<Option<FabricId>, String> {
        if hello.name == "stranger" { Err("strangers are not served".into()) } else { Ok(None) }
    }
}

impl Service for Reverse {
    async fn handle(self: Rc<Self>, _: Rc<Peer>, request: Request) -> Answer {
        let kept = request.body.clone();
        self.0.borrow_mut().push(kept);
        if self.0.borrow().len() > 100 {
            self.0.borrow_mut().clear();
        }
        sleep(Duration::from_micros(random_below(300))).await;
        let mut body = request.body.to_vec();
        body.reverse();
        Answer::ok(request.head.to_vec(), vec![Buf::from(body)])
    }
}

/// More of the largest bodies at once than there are pages for, so that both sides wait for room and sleep
/// meanwhile.
async fn crowd(link: &Link) {
    for round in 0..20 {
        let body = Buf::from(vec![round; 1 << 20]);
        let calls = (0..48).map(|_| async {
            let answer = link.call(Kind::Write, b"large", vec![body.clone()]).await.unwrap();
            assert!(answer.body[..] == body[..]);
        });
        timeout(Duration::from_secs(60), sync::join_all(calls)).await.expect("it goes on when there is room");
    }
}

/// A server in a thread of its own, until the sender is dropped.
fn serve() -> (Addr, mpsc::Sender<()>, thread::JoinHandle<()>) {
    let (tell, told) = mpsc::channel();
    let (alive, ended) = mpsc::channel::<()>();
    let thread = thread::spawn(move || {
        block_on(async move {
            let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap()).unwrap();
            tell.send(listener.local_addr()).unwrap();
            let server =
                spawn(Server::run_with_shared_memory(listener, Services::one(Rc::new(Reverse::default()))));
            while ended.try_recv() != Err(mpsc::TryRecvError::Disconnected) {
                sleep(Duration::from_millis(5)).await;
            }
            server.abort();
        })
        .unwrap();
    });
    (told.recv().unwrap(), alive, thread)
}

fn hello(name: &str) -> Hello {
    Hello::new(PeerRole::Client, None, name)
}

async fn exchange(link: &Link, count: usize) {
    let calls = (0..count).map(|i| {
        let link = link.clone();
        async move {
            let body: Vec<u8> = (0..(i * 1237) % 300_000).map(|at| (at ^ at >> 8 ^ i) as u8).collect();
            let kind = if i % 4 == 0 { Kind::Api } else { Kind::Write };
            let answer =
                link.call(kind, format!("{i}").as_bytes(), vec![Buf::from(&body[..])]).await.unwrap();
            assert_eq!(&answer.head[..], format!("{i}").as_bytes());
            assert!(answer.body.iter().rev().eq(body.iter()), "answer {i}");
        }
    });
    sync::join_all(calls).await;
}

#[test]
fn a_link_to_this_machine_goes_through_shared_memory() {
    let (addr, alive, thread) = serve();
    block_on(async move {
        let shared = Link::connect(&addr, &hello("c")).await.unwrap();
        assert!(shared.is_shared() && shared.welcome().door.is_none());
        let again = Link::connect(&addr, &hello("d")).await.unwrap();
        sync::join_all([exchange(&shared, 2000), exchange(&again, 500)]).await;
        crowd(&shared).await;
        set_shared_memory(false);
        let plain = Link::connect(&addr, &hello("c")).await.unwrap();
        assert!(!plain.is_shared() && plain.welcome().door.is_some());
        exchange(&plain, 300).await;
        let (addr, _alive, _) = serve();
        let link = Link::connect(&addr, &hello("c")).await.unwrap();
        assert!(link.welcome().door.is_none(), "a server that was told not to have one");
        set_shared_memory(true);
        let refused = Link::connect(&addr, &hello("stranger")).await.err().expect("it is refused");
        assert!(refused.to_string().contains("strangers are not served"), "{refused}");
        drop(alive);
        shared.closed().await;
        thread.join().unwrap();
        assert!(shared.call(Kind::Read, b"x", vec![]).await.is_err(), "the other end has gone");
    })
    .unwrap();
}
