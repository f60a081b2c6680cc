//! The demo as a process, driven by the real client and by a browser.

mod browser;
mod scenarios;
mod users;
