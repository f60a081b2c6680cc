//! [`Principal`]: the identity of a requester or decider, from the host's authentication.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// The identity of a user or service that requests or decides an approval.
///
/// A principal comes from the host's authentication, never from a request body. With axum it is an
/// extractor, which takes it from the extensions of the request.
///
/// An approval request belongs to the principal whose chat contains the call. Other principals
/// cannot respond to it unless the host permits that. If a host makes all its users the anonymous
/// principal, each user can respond to the approval requests of all others.
///
/// `Display` writes `id` or `tenant/id`, and `anonymous` where there is no id. A tenant or an id
/// that would make the text ambiguous is quoted, so different principals never have the same text.
///
/// ```
/// use ui_message_stream::approval::Principal;
///
/// let ada = Principal::new("ada").with_tenant("analytical-engines");
/// assert_ne!(ada, Principal::new("ada"));
/// assert_ne!(Principal::anonymous(), Principal::new(""));
/// assert_eq!(ada.to_string(), "analytical-engines/ada");
/// assert_eq!(Principal::new("analytical-engines/ada").to_string(), r#""analytical-engines/ada""#);
/// ```
#[doc(alias = "auth")]
#[doc(alias = "user")]
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Principal {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tenant: Option<Arc<str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    id: Option<Arc<str>>,
}

impl Principal {
    /// Creates the principal of the user or service with this id, without a tenant.
    pub fn new(id: impl Into<Arc<str>>) -> Self {
        Principal { tenant: None, id: Some(id.into()) }
    }

    /// Creates the anonymous principal.
    ///
    /// All users are this principal where the host does not identify its users.
    pub fn anonymous() -> Self {
        Principal { tenant: None, id: None }
    }

    /// Sets the tenant. Principals with the same id and different tenants are different principals.
    #[must_use]
    pub fn with_tenant(mut self, tenant: impl Into<Arc<str>>) -> Self {
        self.tenant = Some(tenant.into());
        self
    }

    /// Returns the id, or `None` for an anonymous principal.
    pub fn id(&self) -> Option<&str> {
        self.id.as_deref()
    }

    /// Returns the tenant, or `None` if no tenant is set.
    pub fn tenant(&self) -> Option<&str> {
        self.tenant.as_deref()
    }
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(tenant) = &self.tenant {
            write_name(tenant, f)?;
            f.write_str("/")?;
        }
        match &self.id {
            Some(id) => write_name(id, f),
            None => f.write_str(ANONYMOUS),
        }
    }
}

/// Writes a tenant or an id: as it is if all its characters are plain, otherwise quoted and escaped.
fn write_name(name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.@+:|".contains(c);
    if !name.is_empty() && name.chars().all(is_plain) && name != ANONYMOUS {
        f.write_str(name)
    } else {
        write!(f, "{name:?}")
    }
}

/// What stands in place of the id of an anonymous principal.
const ANONYMOUS: &str = "anonymous";

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn a_principal_is_read_from_a_list_of_its_tenant_and_its_id() {
        let ada = Principal::new("ada");
        let anonymous = Principal::anonymous();
        let anonymous_of = Principal::anonymous();
        for principal in
            [ada.clone(), ada.with_tenant("t"), anonymous, anonymous_of.with_tenant("")]
        {
            // Stores keep an owner in this form.
            let list = serde_json::json!([principal.tenant(), principal.id()]).to_string();
            assert_eq!(serde_json::from_str::<Principal>(&list).unwrap(), principal, "{list}");
        }
    }

    #[test]
    fn different_principals_are_never_displayed_equal() {
        let names =
            ["", "a", "b", "a/b", "anonymous", "\"", "\"a\"", "a\"/\"b", "\\\"", "/", "a\nb", "ü"];
        let ids = names.iter().map(|name| Principal::new(*name));
        let all: Vec<Principal> = ids.chain([Principal::anonymous()]).collect();
        let tenants = names.iter().flat_map(|tenant| {
            all.iter().map(|principal| principal.clone().with_tenant(*tenant)).collect::<Vec<_>>()
        });
        let mut shown = HashMap::new();
        for principal in tenants.chain(all.clone()) {
            let text = principal.to_string();
            assert!(!text.contains('\n'), "{text}");
            if let Some(other) = shown.insert(text.clone(), principal.clone()) {
                panic!("{other:?} and {principal:?} are both {text}");
            }
        }
    }

    #[test]
    fn an_ordinary_principal_is_displayed_as_it_is() {
        for name in ["ada", "ada@engines.example", "auth0|5f7c8ec7", "b3c0-17"] {
            assert_eq!(Principal::new(name).to_string(), name);
            let of_tenant = Principal::new(name).with_tenant("engines");
            assert_eq!(of_tenant.to_string(), format!("engines/{name}"));
        }
        assert_eq!(Principal::anonymous().to_string(), "anonymous");
    }
}
