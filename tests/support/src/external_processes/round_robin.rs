//! A proxy in front of several servers, without sticky sessions.

use std::io::{ErrorKind, Read, Result, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::rng::Dice;

/// A proxy on a port of its own. It sends each request to the next server, on a new connection. If the
/// server does not accept connections, it takes the one after.
///
/// It cuts some event streams that requests with the header `x-cut` get: at a random byte, as often as
/// not.
#[derive(Debug)]
pub struct RoundRobin {
    /// The URL of the proxy.
    pub url: String,
    chosen: Arc<Mutex<Choice>>,
}

#[derive(Debug)]
struct Choice {
    servers: Vec<String>,
    requests: usize,
    cuts: usize,
    random: Dice,
}

impl RoundRobin {
    /// Starts a proxy in front of the servers at these URLs.
    pub fn start(servers: &[&str]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let address = |url: &&str| url.trim_start_matches("http://").to_owned();
        let servers = servers.iter().map(address).collect();
        let chosen = Choice { servers, requests: 0, cuts: 0, random: Dice::new(1, 0) };
        let chosen = Arc::new(Mutex::new(chosen));
        let of_proxy = Arc::clone(&chosen);
        thread::spawn(move || {
            for client in listener.incoming() {
                let chosen = Arc::clone(&of_proxy);
                thread::spawn(move || {
                    let client = client?;
                    let forwarded = forward(&client, &chosen);
                    // Another thread reads it too, so dropping it would not close it.
                    let _ = client.shutdown(Shutdown::Both);
                    forwarded
                });
            }
        });
        RoundRobin { url, chosen }
    }

    /// Returns how many responses were cut.
    pub fn cuts(&self) -> usize {
        self.chosen.lock().unwrap().cuts
    }
}

fn forward(client: &TcpStream, chosen: &Mutex<Choice>) -> Result<()> {
    let (head, body) = read_head(client)?;
    let may_cut = head.lines().any(|line| line.starts_with("x-cut:"));
    let server = connect(chosen)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    // Each connection is for one request.
    let is_kept = |line: &&str| !line.to_ascii_lowercase().starts_with("connection:");
    let mut request = head.lines().filter(is_kept).collect::<Vec<_>>();
    request.push("connection: close");
    (&server).write_all(format!("{}\r\n\r\n", request.join("\r\n")).as_bytes())?;
    (&server).write_all(&body)?;
    let (from_client, to_server) = (client.try_clone()?, server.try_clone()?);
    thread::spawn(move || {
        // A client that has closed its connection reads no more.
        let _ = copy(&from_client, &to_server, None);
        let _ = to_server.shutdown(Shutdown::Both);
    });
    let (head, body) = read_head(&server)?;
    let is_stream = head.contains("text/event-stream");
    let cut = (may_cut && is_stream).then(|| chosen.lock().unwrap().cut()).flatten();
    (&*client).write_all(format!("{head}\r\n\r\n").as_bytes())?;
    let first = cut.map_or(body.len(), |at| at.min(body.len()));
    (&*client).write_all(&body[..first])?;
    let copied = copy(&server, client, cut.map(|at| at - first));
    let _ = server.shutdown(Shutdown::Both);
    if !copied? {
        chosen.lock().unwrap().cuts += 1;
    }
    Ok(())
}

fn connect(chosen: &Mutex<Choice>) -> Result<TcpStream> {
    let (first, servers) = {
        let mut chosen = chosen.lock().unwrap();
        chosen.requests += 1;
        (chosen.requests, chosen.servers.clone())
    };
    let mut refused = ErrorKind::NotConnected.into();
    for at in 0..servers.len() {
        match TcpStream::connect(&servers[(first + at) % servers.len()]) {
            Ok(server) => return Ok(server),
            Err(error) => refused = error,
        }
    }
    Err(refused)
}

impl Choice {
    /// Returns after how many bytes the next response is cut, if it is not shorter.
    fn cut(&mut self) -> Option<usize> {
        self.random.chance(50).then(|| self.random.below(3_000))
    }
}

/// Reads the head of a request or response, without the empty line, and what has come after it.
fn read_head(mut stream: &TcpStream) -> Result<(String, Vec<u8>)> {
    let mut read = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let length = stream.read(&mut buffer)?;
        if length == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        read.extend_from_slice(&buffer[..length]);
        if let Some(end) = read.windows(4).position(|four| four == b"\r\n\r\n") {
            let body = read.split_off(end + 4);
            read.truncate(end);
            return Ok((String::from_utf8_lossy(&read).into_owned(), body));
        }
    }
}

/// Copies all bytes, or at most so many. Returns whether it has copied all.
fn copy(mut from: &TcpStream, mut to: &TcpStream, mut most: Option<usize>) -> Result<bool> {
    let mut buffer = [0; 16 * 1024];
    while most != Some(0) {
        let length = from.read(&mut buffer)?;
        if length == 0 {
            return Ok(true);
        }
        let length = most.map_or(length, |most| most.min(length));
        to.write_all(&buffer[..length])?;
        most = most.map(|most| most - length);
    }
    Ok(false)
}
