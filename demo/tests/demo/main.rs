//! The demo as a process, driven by the real client and by a browser.

mod browser;
mod hung_server;
mod scenarios;
mod two_servers;
mod users;
