//! The process of an arm.

use std::fs::{File, read_dir, read_to_string};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::Outcome;
use crate::install::{Installed, target};

/// A server that runs until it is dropped.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: SocketAddr,
}

impl Server {
    /// Starts an arm on a core, and waits until it accepts connections.
    ///
    /// # Errors
    /// If it ends, or accepts no connection within 30 seconds.
    pub(crate) fn start(arm: &Installed, core: usize, paced_deltas: usize) -> Outcome<Self> {
        let address = free_address()?;
        let log = target()?.join(format!("{}.log", arm.arm.name));
        let output = File::create(&log)?;
        let mut command = Command::new("taskset");
        command.args(["-c", &core.to_string()]).args(&arm.program);
        command.arg(address.port().to_string()).args(&arm.last_arguments);
        command.arg(paced_deltas.to_string()).env("NODE_ENV", "production");
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let mut server = Server { child: command.spawn()?, address };
        let begun = Instant::now();
        while TcpStream::connect(address).is_err() {
            let ended = server.child.try_wait()?;
            if ended.is_some() || begun.elapsed() > Duration::from_secs(30) {
                let printed = read_to_string(&log)?;
                let last = printed.trim().lines().next_back().unwrap_or_default().to_owned();
                return Err(format!("{} does not start: {last}", arm.arm.name).into());
            }
            sleep(Duration::from_millis(20));
        }
        Ok(server)
    }

    /// Returns the CPU time of all threads of the server, in nanoseconds.
    pub(crate) fn cpu(&self) -> Outcome<u64> {
        cpu_of(self.child.id())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // An error means that the process has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the CPU time of all threads of a process, in nanoseconds. A thread that has ended does not count.
pub(crate) fn cpu_of(process: u32) -> Outcome<u64> {
    let mut sum = 0;
    for thread in read_dir(format!("/proc/{process}/task"))? {
        let Ok(times) = read_to_string(thread?.path().join("schedstat")) else { continue };
        sum += times.split(' ').next().unwrap_or_default().parse::<u64>()?;
    }
    Ok(sum)
}

fn free_address() -> Outcome<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}
