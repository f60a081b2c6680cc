//! [`Principal`]: who asks and who decides, as the host's authentication says.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Who asks, or who decides. It comes from the host's authentication, never from a body.
///
/// An approval belongs to the principal whose chat it was asked in, and nobody else can answer it
/// unless the host says so. Without authentication there is one anonymous principal for everybody,
/// and what is asked for one may be answered by all.
///
/// ```
/// use ui_message_stream::approval::Principal;
///
/// let ada = Principal::new("ada").of_tenant("analytical-engines");
/// assert_ne!(ada, Principal::new("ada"));
/// assert_ne!(Principal::anonymous(), Principal::new(""));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Principal {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tenant: Option<Arc<str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    id: Option<Arc<str>>,
}

impl Principal {
    /// The person, or the service, with this id.
    pub fn new(id: impl Into<Arc<str>>) -> Self {
        Principal { tenant: None, id: Some(id.into()) }
    }

    /// Nobody in particular: what everybody is where the host does not say who they are.
    pub fn anonymous() -> Self {
        Principal { tenant: None, id: None }
    }

    /// Of this customer: the same id at another one is somebody else.
    #[must_use]
    pub fn of_tenant(mut self, tenant: impl Into<Arc<str>>) -> Self {
        self.tenant = Some(tenant.into());
        self
    }

    /// The id; `None` of nobody in particular.
    pub fn id(&self) -> Option<&str> {
        self.id.as_deref()
    }

    /// The customer, where there are several.
    pub fn tenant(&self) -> Option<&str> {
        self.tenant.as_deref()
    }

    /// Whether this is nobody in particular.
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
