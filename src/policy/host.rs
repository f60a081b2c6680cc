//! [`Host`]: the host that a request names, parsed strictly.
//!
//! A browser sends the host in the form that its URL parser produces: in punycode, without
//! userinfo, and an address in its canonical form. This parser therefore normalizes nothing else. A
//! form that only a URL parser understands (`127.1`, `0x7f.1`, `a@b`) is not an address here, and
//! often not a valid host.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::header::HOST;
use http::request::Parts;

/// The host that a request names, without its port. The port does not matter, because only one
/// server listens on the socket that received the request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Host {
    /// An IPv4 address, or an IPv6 address in brackets.
    Address(IpAddr),
    /// A name in lower case, without a trailing dot.
    Name(String),
}

/// The error of a request whose host is invalid or ambiguous.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct InvalidHost;

impl Host {
    /// Parses `name`, `name:port`, `127.0.0.1:port` or `[::1]:port`.
    pub(super) fn parse(text: &str) -> Result<Self, InvalidHost> {
        if let Some(bracketed) = text.strip_prefix('[') {
            let (address, port) = bracketed.split_once(']').ok_or(InvalidHost)?;
            check_port(port)?;
            let address: Ipv6Addr = address.parse().map_err(|_| InvalidHost)?;
            return Ok(Host::Address(address.into()));
        }
        let (name, port) = text.split_at(text.find(':').unwrap_or(text.len()));
        check_port(port)?;
        // `localhost.` is the same as `localhost`, and a browser sends the dot.
        let name = name.strip_suffix('.').unwrap_or(name);
        if let Ok(address) = name.parse::<Ipv4Addr>() {
            return Ok(Host::Address(address.into()));
        }
        if name.len() > MAX_NAME_LEN || !name.split('.').all(is_label) {
            return Err(InvalidHost);
        }
        Ok(Host::Name(name.to_ascii_lowercase()))
    }

    /// Parses the host of an origin, which is a scheme, a host and a port.
    pub(super) fn from_origin(origin: &str) -> Result<Self, InvalidHost> {
        let host = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        Host::parse(host.ok_or(InvalidHost)?)
    }

    /// Returns whether only a server on this machine can have this host.
    ///
    /// `localhost` and the names under it always resolve to the loopback address (RFC 6761, 6.3), so
    /// that no external name server can point them elsewhere.
    pub(super) fn is_loopback(&self) -> bool {
        match self {
            Host::Address(address) => address.is_loopback(),
            Host::Name(name) => name == "localhost" || name.ends_with(".localhost"),
        }
    }

    /// Parses the host that a request names in its `Host` header or, as in HTTP/2, in its URI.
    ///
    /// Returns `None` if the request names no host. An HTTP client may omit it, but browsers always
    /// send it.
    pub(super) fn from_parts(parts: &Parts) -> Result<Option<Self>, InvalidHost> {
        let mut headers = parts.headers.get_all(HOST).iter();
        let in_header = match headers.next() {
            Some(value) => Some(Host::parse(value.to_str().map_err(|_| InvalidHost)?)?),
            None => None,
        };
        if headers.next().is_some() {
            return Err(InvalidHost);
        }
        let in_uri = match parts.uri.authority() {
            Some(authority) => Some(Host::parse(authority.as_str())?),
            None => None,
        };
        match (in_header, in_uri) {
            // RFC 9113, 8.3.1: a request that names two hosts is malformed.
            (Some(in_header), Some(in_uri)) if in_header != in_uri => Err(InvalidHost),
            (in_header, in_uri) => Ok(in_uri.or(in_header)),
        }
    }
}

/// Checks that the text is empty, or a colon and a port.
fn check_port(text: &str) -> Result<(), InvalidHost> {
    let Some(port) = text.strip_prefix(':') else {
        return if text.is_empty() { Ok(()) } else { Err(InvalidHost) };
    };
    // RFC 3986, 3.2.3: the port after the colon may be empty.
    let is_port = port.is_empty() || port.parse::<u16>().is_ok();
    if is_port && port.bytes().all(|byte| byte.is_ascii_digit()) {
        Ok(())
    } else {
        Err(InvalidHost)
    }
}

fn is_label(label: &str) -> bool {
    let is_label_byte = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    !label.is_empty() && label.bytes().all(is_label_byte)
}

/// The maximum length of a name in DNS, in characters. It also bounds the host in an error message.
const MAX_NAME_LEN: usize = 253;
