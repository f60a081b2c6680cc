//! The example `client` as a process: approves, denies, and reads on after lost connections.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use test_support::external_processes::{Example, built_example};

use super::http::world;

/// Runs the client with this message and these lines of input, and returns what it prints.
fn run(url: &str, message: &str, input: &str) -> String {
    let mut client = Command::new(built_example("client", &[]))
        .args([message, &format!("{url}/api/chat")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    client.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = client.wait_with_output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{printed}");
    printed
}

#[test]
fn a_client_in_rust_denies_and_approves() {
    let server = Example::start("chat", &[]);
    let files = world(&server)["files"].clone();
    let denied = run(&server.url, "delete notes.txt", "n\n");
    assert_eq!(world(&server)["files"], files, "{denied}");
    let approved = run(&server.url, "delete notes.txt", "y\n");
    assert_ne!(world(&server)["files"], files, "{approved}");
    for printed in [&denied, &approved] {
        assert!(printed.starts_with("I can delete that file"), "{printed}");
        assert_eq!(printed.matches("delete_file {").count(), 1, "{printed}");
    }
    assert_ne!(denied, approved);
    test_support::external_processes::say(&format!("{denied}{approved}"));
}

#[test]
fn a_client_in_rust_reads_on_after_lost_connections() {
    let server = Example::start("chat", &[]);
    let whole = run(&server.url, "slow 20", "");
    // Before the first id, within a frame, and twice later.
    let proxy = CuttingProxy::start(&server.url, &[0, 700, 900, 400]);
    assert_eq!(run(&proxy.url, "slow 20", ""), whole);
    let requests = proxy.requests.lock().unwrap();
    let continued: Vec<bool> =
        requests.iter().map(|head| head.to_lowercase().contains("\r\nlast-event-id: ")).collect();
    assert_eq!(continued, [false, false, true, true, true], "{requests:?}");
}

/// A proxy that breaks its first connections, each after so many bytes of the response.
struct CuttingProxy {
    url: String,
    requests: Arc<Mutex<Vec<String>>>,
}

impl CuttingProxy {
    fn start(server: &str, cuts: &[usize]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let server = server.trim_start_matches("http://").to_owned();
        let cuts = cuts.to_vec();
        let seen = Arc::clone(&requests);
        thread::spawn(move || {
            for (at, client) in listener.incoming().enumerate() {
                let cut = cuts.get(at).copied();
                serve(client.unwrap(), TcpStream::connect(&server).unwrap(), cut, &seen);
            }
        });
        CuttingProxy { url, requests }
    }
}

fn serve(
    mut client: TcpStream,
    mut server: TcpStream,
    cut: Option<usize>,
    seen: &Mutex<Vec<String>>,
) {
    let mut buffer = [0; 4096];
    let length = client.read(&mut buffer).unwrap();
    seen.lock().unwrap().push(String::from_utf8_lossy(&buffer[..length]).into_owned());
    server.write_all(&buffer[..length]).unwrap();
    let mut from_client = client.try_clone().unwrap();
    let mut to_server = server.try_clone().unwrap();
    let rest = thread::spawn(move || std::io::copy(&mut from_client, &mut to_server));
    let mut read = Vec::new();
    let mut body_begins = None;
    while let Ok(length @ 1..) = server.read(&mut buffer) {
        let before = read.len();
        read.extend_from_slice(&buffer[..length]);
        let end = || read.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4);
        body_begins = body_begins.or_else(end);
        let last = body_begins.zip(cut).map_or(usize::MAX, |(begin, cut)| begin + cut);
        if client.write_all(&read[before..read.len().min(last).max(before)]).is_err()
            || read.len() >= last
        {
            break;
        }
    }
    let _ = (client.shutdown(Shutdown::Both), server.shutdown(Shutdown::Both));
    let _ = rest.join();
}
