//! The demo as a process, driven by the real client and by a browser.

mod browser;
mod client;
mod faults;
mod http;
mod hung_server;
mod killed_tools;
mod operation;
mod page_types;
mod random_kills;
mod restore;
mod scenarios;
#[cfg(feature = "tls")]
mod tls;
mod two_servers;
mod users;
