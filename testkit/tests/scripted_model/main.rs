//! The scripted model over real connections, then behind a real opencode.

#[cfg(test)]
mod http;
#[cfg(test)]
mod opencode;
#[cfg(test)]
mod real_opencode;
