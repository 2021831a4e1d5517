use super::*;
use crate::buffers::{ClassPlan, Pool};
use crate::sys;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::rc::Rc;
use units::Duration;

fn pool() -> &'static Pool {
    Pool::leak(&[ClassPlan { size: 4096, count: 8 }, ClassPlan { size: 1 << 20, count: 4 }])
}

fn interfaces() -> impl Iterator<Item = Interface> {
    // io_uring may be forbidden where the tests run.
    let uring = Ring::<u8>::with_interface(8, Interface::IoUring).is_ok();
    [Interface::IoUring, Interface::Poll].into_iter().filter(move |i| uring || *i == Interface::Poll)
}

/// Most tests of a ring are made with both of its interfaces.
#[test]
fn both_interfaces_are_tried() {
    if !interfaces().any(|i| i == Interface::IoUring) {
        println!("skipped: io-uring: this kernel has none, or we may not use it");
    }
    assert!(interfaces().any(|i| i == Interface::Poll));
}

/// Turns until `n` completions came.
fn complete<T: Copy>(ring: &mut Ring<T>, n: usize) -> Vec<Done<T>> {
    let mut done = Vec::new();
    while done.len() < n {
        ring.turn(Some(sys::now() + Duration::from_secs(10)), &mut done).unwrap();
    }
    assert_eq!(done.len(), n, "more completions than operations");
    done
}

/// A listener, and where it is.
fn listening() -> (Fd, std::net::SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (fd(listener), address)
}

fn fd(file: impl Into<std::os::fd::OwnedFd>) -> Fd {
    Rc::new(file.into())
}

#[test]
fn a_file_reads_back_what_was_written() {
    for interface in interfaces() {
        let (pool, mut ring) = (pool(), Ring::with_interface(8, interface).unwrap());
        let file = fd(tempfile::tempfile().unwrap());
        let mut buf = pool.take(4096).unwrap();
        buf.bytes_mut().fill(7);
        let mut parts = Box::new(Message::new());
        parts.copy(b"abc");
        parts.share(buf.clone().span(0, 5));
        ring.push(Op::Write { fd: file.clone(), offset: 4096, from: buf.span(0, 4096), durable: true }, 'w');
        ring.push(Op::WriteParts { fd: file.clone(), offset: 0, parts, durable: false }, 'v');
        for done in complete(&mut ring, 2) {
            assert_eq!(done.result().unwrap(), if done.token == 'w' { 4096 } else { 8 });
        }
        ring.push(Op::Flush { fd: file.clone() }, 'f');
        ring.push(Op::Read { fd: file.clone(), offset: 0, into: pool.take(8).unwrap().span(0, 8) }, 'r');
        for done in complete(&mut ring, 2) {
            if let Some(Op::Read { into, .. }) = &done.op {
                assert_eq!(into.bytes(), b"abc\x07\x07\x07\x07\x07");
            }
        }
        ring.push(Op::Fallocate { fd: file, offset: 4096, len: 4096, mode: FallocateMode::PunchHole }, 'p');
        assert_eq!(complete(&mut ring, 1)[0].result().unwrap(), 0);
        assert_eq!((pool.in_use(), ring.in_flight()), (0, 0));
    }
}

#[test]
fn inline_operations_complete_with_the_next_turn() {
    let (pool, mut ring) = (pool(), Ring::new(8).unwrap());
    let file = fd(tempfile::tempfile().unwrap());
    let from = pool.take(4096).unwrap().span(0, 4096);
    ring.push_inline(Op::Write { fd: file, offset: 0, from, durable: false }, 1);
    assert_eq!(complete(&mut ring, 1)[0].result().unwrap(), 4096);
}

#[test]
fn errors_are_reported() {
    for interface in interfaces() {
        let (pool, mut ring) = (pool(), Ring::with_interface(8, interface).unwrap());
        let file = fd(File::open("/proc/self/exe").unwrap());
        let from = pool.take(1).unwrap().span(0, 1);
        ring.push(Op::Write { fd: file, offset: 0, from, durable: false }, ());
        let done = complete(&mut ring, 1);
        assert_eq!(done[0].result().unwrap_err().raw_os_error(), Some(libc::EBADF));
    }
}

#[test]
fn tcp_streams_connect_send_and_receive() {
    for interface in interfaces() {
        let (pool, mut ring) = (pool(), Ring::with_interface(8, interface).unwrap());
        let (listener, address) = listening();
        let accept = ring.push(Op::Accept { fd: listener }, 'a');
        let client = fd(sys::tcp_socket(&"127.0.0.1:0".parse().unwrap(), |_| ()).unwrap());
        ring.push(Op::Connect { fd: client.clone(), to: address.into() }, 'c');
        let mut done = complete(&mut ring, 2);
        done.sort_by_key(|d| d.token);
        let server = fd(done[0].accepted().unwrap());
        assert!(done[0].op.is_none() && done[0].accepted().is_err());
        assert_eq!(done[1].result().unwrap(), 0);

        let mut message = Box::new(Message::new());
        message.copy(b"head");
        let mut body = pool.take(4096).unwrap();
        body.bytes_mut().fill(9);
        message.share(body.span(0, 4096));
        ring.push(Op::Recv { fd: server.clone(), into: pool.take(8192).unwrap().span(0, 8192), take: Take::Some }, 'r');
        ring.push(Op::Send { fd: client.clone(), message }, 's');
        for done in complete(&mut ring, 2) {
            assert_eq!(done.result().unwrap(), 4100);
            if let Some(Op::Recv { into, .. }) = &done.op {
                assert!(into.bytes().starts_with(b"head\x09\x09"));
            }
        }
        assert!(sys::is_alive(&client));

        let recv = ring.push(Op::Recv { fd: server, into: pool.take(1).unwrap().span(0, 1), take: Take::Some }, 'r');
        ring.cancel(recv);
        ring.cancel(accept);
        assert!(complete(&mut ring, 2).iter().all(Done::cancelled));
        assert_eq!((pool.in_use(), ring.in_flight()), (0, 0));
    }
}

#[test]
fn a_connection_that_nobody_takes_is_closed() {
    for interface in interfaces() {
        let mut ring = Ring::with_interface(8, interface).unwrap();
        let (listener, address) = listening();
        ring.push(Op::Accept { fd: listener }, ());
        let mut client = TcpStream::connect(address).unwrap();
        client.set_read_timeout(Some(std::time::Duration::from_secs(10))).unwrap();
        drop(complete(&mut ring, 1));
        assert_eq!(client.read(&mut [0]).unwrap(), 0);
    }
}

#[test]
fn a_connection_that_came_before_its_listener_was_cancelled_is_closed() {
    for interface in interfaces() {
        let mut ring = Ring::with_interface(8, interface).unwrap();
        let (listener, address) = listening();
        let mut client = TcpStream::connect(address).unwrap();
        client.set_read_timeout(Some(std::time::Duration::from_secs(10))).unwrap();
        let accept = ring.push(Op::Accept { fd: listener }, ());
        ring.cancel(accept);
        let mut done = Vec::new();
        while !done.iter().any(|d: &Done<()>| d.op.is_some()) {
            ring.turn(Some(sys::now() + Duration::from_secs(10)), &mut done).unwrap();
        }
        drop(done);
        let end = client.read(&mut [0]);
        let reset = |e: io::Error| e.kind() == io::ErrorKind::ConnectionReset;
        assert!(end.as_ref().is_ok_and(|n| *n == 0) || end.is_err_and(reset), "{interface}");
    }
}

#[test]
fn more_connections_come_at_once_than_the_kernel_has_room_to_report() {
    for interface in interfaces() {
        let mut ring = Ring::with_interface(1, interface).unwrap();
        let (listener, address) = listening();
        ring.push(Op::Accept { fd: listener }, ());
        for n in [100, 1] {
            let _clients: Vec<_> = (0..n).map(|_| TcpStream::connect(address).unwrap()).collect();
            let (mut accepted, limit) = (0, sys::now() + Duration::from_secs(10));
            while accepted < n && sys::now() < limit {
                let mut done = Vec::new();
                ring.turn(Some(limit), &mut done).unwrap();
                accepted += done.iter_mut().filter_map(|d| d.accepted().ok()).count();
            }
            assert_eq!(accepted, n);
        }
    }
}

#[test]
fn a_partly_sent_message_goes_on_where_it_stopped() {
    for interface in interfaces() {
        let (pool, mut ring) = (pool(), Ring::with_interface(8, interface).unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut receiver, _) = listener.accept().unwrap();
        let mut message = Box::new(Message::new());
        for i in 0..4 {
            message.copy(&[i; 3]);
            let mut buf = pool.take(1 << 20).unwrap();
            buf.bytes_mut().fill(i);
            message.share(buf.span(0, 1 << 20));
        }
        let total = message.remaining();
        let reader = std::thread::spawn(move || {
            let mut all = Vec::new();
            receiver.read_to_end(&mut all).map(|_| all)
        });
        let sender = fd(sender);
        while !message.is_empty() {
            ring.push(Op::Send { fd: sender.clone(), message }, ());
            let done = complete(&mut ring, 1).remove(0);
            let n = done.result().unwrap() as usize;
            let Some(Op::Send { message: m, .. }) = done.op else { panic!("a send comes back as a send") };
            message = m;
            message.advance(n);
        }
        drop((sender, message));
        let all = reader.join().unwrap().unwrap();
        assert_eq!(all.len(), total);
        for (i, part) in all.chunks(3 + (1 << 20)).enumerate() {
            assert!(part.iter().all(|b| *b == i as u8));
        }
    }
}

#[test]
fn a_deadline_ends_the_wait() {
    for interface in interfaces() {
        let mut ring: Ring<()> = Ring::with_interface(8, interface).unwrap();
        let mut done = Vec::new();
        let deadline = sys::now() + Duration::from_millis(20);
        while sys::now() < deadline {
            ring.turn(Some(deadline), &mut done).unwrap();
        }
        ring.turn(Some(units::Instant(0)), &mut done).unwrap();
        assert!(done.is_empty());
    }
}

/// Waits of all lengths end at their time, also where one timer serves several of them.
#[test]
fn short_deadlines_in_a_row() {
    for interface in interfaces() {
        let mut ring: Ring<()> = Ring::with_interface(8, interface).unwrap();
        let (mut done, began) = (Vec::new(), sys::now());
        for ms in [3, 1, 2, 5, 4, 8, 6, 7] {
            let deadline = began + Duration::from_millis(ms);
            while sys::now() < deadline {
                ring.turn(Some(deadline), &mut done).unwrap();
            }
        }
        assert!(done.is_empty() && ring.in_flight() == 0);
    }
}

/// A ring that stays awake finds the same things, and lets go of receives that are cancelled.
#[test]
fn staying_awake_changes_nothing() {
    let (pool, mut ring) = (pool(), Ring::new(8).unwrap());
    *ring.busy_poll() = BusyPoll::at_most(Duration::from_millis(1));
    let (mut writer, reader) = std::os::unix::net::UnixStream::pair().unwrap();
    let (reader, file) = (fd(reader), fd(tempfile::tempfile().unwrap()));
    let recv = |n: usize| Op::Recv { fd: reader.clone(), into: pool.take(n).unwrap().span(0, n), take: Take::Some };
    for i in 0..200u32 {
        ring.push(recv(4), 'r');
        ring.push(Op::Flush { fd: file.clone() }, 'f');
        writer.write_all(&i.to_le_bytes()).unwrap();
        for done in complete(&mut ring, 2) {
            if let Some(Op::Recv { into, .. }) = &done.op {
                assert_eq!(into.bytes(), i.to_le_bytes());
            }
        }
    }
    let id = ring.push(recv(4), 'r');
    ring.cancel(id);
    assert!(complete(&mut ring, 1)[0].cancelled());
    ring.push(recv(4), 'r');
    drop(writer);
    assert_eq!(complete(&mut ring, 1)[0].result().unwrap(), 0, "the end of the stream");
    drop(reader);
    assert_eq!((pool.in_use(), ring.in_flight()), (0, 0));
}

/// What is answered first stays on its socket until the next turn, and is given once.
#[test]
fn an_answer_leaves_before_the_acknowledgement() {
    let (pool, mut ring) = (pool(), Ring::new(8).unwrap());
    if ring.interface() == Interface::Poll {
        return println!("skipped: io-uring: nothing else stays awake");
    }
    *ring.busy_poll() = BusyPoll::at_most(Duration::from_millis(1));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut writer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    writer.set_nodelay(true).unwrap();
    let reader = fd(listener.accept().unwrap().0);
    let left = || sys::received_bytes(&reader);
    let recv =
        || Op::Recv { fd: reader.clone(), into: pool.take(4096).unwrap().span(0, 4096), take: Take::AnswerFirst };
    let (ask, asked) = std::sync::mpsc::channel::<(u32, usize)>();
    // Answers a moment after it was asked, so that the ring looks in vain first.
    let other = std::thread::spawn(move || {
        for (i, words) in asked {
            let end = sys::now() + Duration(40_000);
            while sys::now() < end {}
            writer.write_all(&i.to_le_bytes().repeat(words)).unwrap();
        }
        writer
    });
    let (mut left_there, end) = (0, sys::now() + Duration::from_secs(60));
    for i in 0u32.. {
        // Now and then more than there is room for.
        let words = if i % 7 == 0 { 1500 } else { 1 };
        ask.send((i, words)).unwrap();
        let mut got = Vec::new();
        while got.len() < 4 * words {
            ring.push(recv(), 'r');
            let done = complete(&mut ring, 1);
            let Some(Op::Recv { into, .. }) = &done[0].op else { panic!("{done:?}") };
            let n = done[0].result().unwrap() as usize;
            left_there += usize::from(n == 4 && left() == 4);
            got.extend_from_slice(&into.bytes()[..n]);
        }
        assert_eq!(got, i.to_le_bytes().repeat(words));
        if i >= 200 && left_there >= 10 {
            break;
        }
        assert!(sys::now() < end, "it never stays awake");
    }
    drop(ask);
    let _open = other.join().unwrap();
    let id = ring.push(recv(), 'r');
    ring.cancel(id);
    assert!(complete(&mut ring, 1)[0].cancelled());
    assert_eq!(left(), 0);
}

#[test]
fn what_a_socket_does_not_take_at_once_is_left() {
    let mut ring: Ring<()> = Ring::new(8).unwrap();
    let (writer, mut reader) = std::os::unix::net::UnixStream::pair().unwrap();
    let (writer, mut message) = (fd(writer), Message::new());
    message.copy(&vec![7; 4 << 20]);
    let sent = ring.send_now(&writer, &mut message);
    assert!(sent > 0 && message.remaining() == (4 << 20) - sent);
    assert_eq!(ring.send_now(&writer, &mut message), 0, "it is full");
    let mut got = vec![0; sent];
    reader.read_exact(&mut got).unwrap();
    assert!(got.iter().all(|b| *b == 7));
    drop(reader);
    assert_eq!(ring.send_now(&writer, &mut message), 0, "nobody reads");
    ring.push(Op::Send { fd: writer, message: Box::new(message) }, ());
    assert_eq!(complete(&mut ring, 1)[0].result().unwrap_err().raw_os_error(), Some(libc::EPIPE));
}

#[test]
fn readable_waits_for_input() {
    for interface in interfaces() {
        let mut ring = Ring::with_interface(8, interface).unwrap();
        let (reader, mut writer) = std::io::pipe().unwrap();
        ring.push(Op::Readable { fd: fd(reader) }, 5);
        let mut done = Vec::new();
        ring.turn(Some(units::Instant(0)), &mut done).unwrap();
        assert!(done.is_empty());
        writer.write_all(b"x").unwrap();
        let done = complete(&mut ring, 1);
        assert!(done[0].token == 5 && done[0].result().unwrap() & libc::POLLIN as u32 != 0);
    }
}

#[test]
fn more_operations_than_the_ring_is_deep() {
    for interface in interfaces() {
        let mut ring = Ring::with_interface(4, interface).unwrap();
        let path = tempfile::NamedTempFile::new().unwrap();
        let file = fd(OpenOptions::new().read(true).write(true).open(path.path()).unwrap());
        for i in 0..100 {
            ring.push(Op::Flush { fd: file.clone() }, i);
        }
        let mut seen: Vec<i32> = complete(&mut ring, 100).iter().map(|d| d.token).collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..100).collect::<Vec<_>>());
    }
}
