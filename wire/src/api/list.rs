//! Pages of lists, and what lists can be asked for.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::SessionState;

/// Items of a page when the caller does not say.
pub const LIST_DEFAULT: u16 = 50;
/// Most items of a page.
pub const LIST_MAX: u16 = 200;

/// A page of a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Page<T> {
    /// The items, in the order that the route states.
    pub items: Vec<T>,
    /// What to put into `cursor` for the next page; absent on the last one. It stays good while items come and go.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

impl<T> Page<T> {
    /// A page that is the whole list.
    pub fn whole(items: Vec<T>) -> Self {
        Self { items, next_cursor: None }
    }
}

/// From which end a list begins.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ListOrder {
    /// From the oldest on.
    #[default]
    Oldest,
    /// From the newest back.
    Newest,
}

/// Which page of a session's turns.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct ListQuery {
    /// Most items of the page, 1 to 200; 50 when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(minimum = 1, maximum = 200)]
    pub limit: Option<u16>,
    /// `next_cursor` of the page before, with the same order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// From which end the list begins; from the oldest on when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(inline)]
    pub order: Option<ListOrder>,
}

/// Which sessions of a sandbox, and which page of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct SessionFilter {
    /// Most items of the page, 1 to 200; 50 when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(minimum = 1, maximum = 200)]
    pub limit: Option<u16>,
    /// `next_cursor` of the page before, with the same filter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// Only those whose title contains this, in any case of letters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// Only those in this state.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(inline)]
    pub state: Option<SessionState>,
    /// Only those that changed after this moment (RFC 3339).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<String>, format = DateTime)]
    pub updated_after: Option<Timestamp>,
    /// Only those with this working directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub directory: Option<String>,
}
