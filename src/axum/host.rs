//! [`Host`]: which server a request says it is for, read strictly.
//!
//! A browser writes the host as its URL parser left it: in punycode, without userinfo, an address
//! in its one plain form. So nothing is repaired here, and what only a URL parser would understand
//! (`127.1`, `0x7f.1`, `a@b`) is no address and often no host at all.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::header::HOST;
use http::request::Parts;

/// The host that a request names, without its port: only one server listens where it came in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Host {
    /// An IPv4 address, or an IPv6 address in brackets.
    Address(IpAddr),
    /// A name, in lower case and without the dot that may end it.
    Name(String),
}

/// Why no host could be read from a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct UnclearHost;

impl Host {
    /// Reads `name`, `name:port`, `127.0.0.1:port` or `[::1]:port`.
    pub(super) fn parse(text: &str) -> Result<Self, UnclearHost> {
        if let Some(bracketed) = text.strip_prefix('[') {
            let (address, port) = bracketed.split_once(']').ok_or(UnclearHost)?;
            check_port(port)?;
            let address: Ipv6Addr = address.parse().map_err(|_| UnclearHost)?;
            return Ok(Host::Address(address.into()));
        }
        let (name, port) = text.split_at(text.find(':').unwrap_or(text.len()));
        check_port(port)?;
        // `localhost.` is `localhost`, and a browser keeps the dot.
        let name = name.strip_suffix('.').unwrap_or(name);
        if let Ok(address) = name.parse::<Ipv4Addr>() {
            return Ok(Host::Address(address.into()));
        }
        if name.len() > MAX_NAME || !name.split('.').all(is_label) {
            return Err(UnclearHost);
        }
        Ok(Host::Name(name.to_ascii_lowercase()))
    }

    /// The host that a request names, in its `Host` header or, as in HTTP/2, in its URI.
    ///
    /// `None` if it names none: an HTTP client may do without, no browser does.
    pub(super) fn of_request(parts: &Parts) -> Result<Option<Self>, UnclearHost> {
        let mut headers = parts.headers.get_all(HOST).iter();
        let in_header = match headers.next() {
            Some(value) => Some(Host::parse(value.to_str().map_err(|_| UnclearHost)?)?),
            None => None,
        };
        if headers.next().is_some() {
            return Err(UnclearHost);
        }
        let in_uri = match parts.uri.authority() {
            Some(authority) => Some(Host::parse(authority.as_str())?),
            None => None,
        };
        match (in_header, in_uri) {
            // RFC 9113, 8.3.1: a request that names two hosts is malformed.
            (Some(in_header), Some(in_uri)) if in_header != in_uri => Err(UnclearHost),
            (in_header, in_uri) => Ok(in_uri.or(in_header)),
        }
    }
}

/// Nothing, or a colon and a port.
fn check_port(text: &str) -> Result<(), UnclearHost> {
    let Some(port) = text.strip_prefix(':') else {
        return if text.is_empty() { Ok(()) } else { Err(UnclearHost) };
    };
    // RFC 3986, 3.2.3: the port may be missing behind its colon.
    let is_port = port.is_empty() || port.parse::<u16>().is_ok();
    if is_port && port.bytes().all(|byte| byte.is_ascii_digit()) {
        Ok(())
    } else {
        Err(UnclearHost)
    }
}

fn is_label(label: &str) -> bool {
    let is_known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    !label.is_empty() && label.bytes().all(is_known)
}

/// As many characters as a name may have in DNS, and an error text may repeat.
const MAX_NAME: usize = 253;
