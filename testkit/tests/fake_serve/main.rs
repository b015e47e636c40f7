//! The fake of `opencode serve` over real connections: its plain behaviour against captures of the real one, and its
//! routes.

#[cfg(test)]
mod captures;
#[cfg(test)]
mod fake;
#[cfg(test)]
mod routes;
