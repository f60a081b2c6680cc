//! The guide `docs/authentication.md` is compiled as the documentation test of this package.

#[cfg(doctest)]
#[doc = include_str!("../../../docs/authentication.md")]
struct AuthenticationGuide;
