//! [`Principal`]: the identity of a requester or decider, from the host's authentication.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// The identity of a user or service that requests or decides an approval.
///
/// A principal comes from the host's authentication, never from a request body.
///
/// An approval request belongs to the principal whose chat contains the call. Other principals
/// cannot respond to it unless the host permits that. Without authentication, all users are one
/// anonymous principal, and every user can respond to the approval requests of every other user.
///
/// ```
/// use ui_message_stream::approval::Principal;
///
/// let ada = Principal::new("ada").with_tenant("analytical-engines");
/// assert_ne!(ada, Principal::new("ada"));
/// assert_ne!(Principal::anonymous(), Principal::new(""));
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

    /// Returns whether this principal is anonymous: it has no id.
    pub fn is_anonymous(&self) -> bool {
        self.id.is_none()
    }
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(tenant) = &self.tenant {
            write!(f, "{tenant}/")?;
        }
        f.write_str(self.id.as_deref().unwrap_or("anonymous"))
    }
}
