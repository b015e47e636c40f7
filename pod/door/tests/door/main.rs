//! The pod's parts over real sockets: the door against an upstream that the test controls, then supervisor and door
//! against a real opencode.

#[cfg(test)]
mod bounds;
#[cfg(test)]
mod class;
#[cfg(test)]
mod events;
#[cfg(test)]
mod fence;
#[cfg(test)]
mod files;
#[cfg(test)]
mod frames;
#[cfg(test)]
mod gate;
#[cfg(test)]
mod hop;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod housekeeping;
#[cfg(test)]
mod journal;
#[cfg(test)]
mod journal_real;
#[cfg(test)]
mod passwords;
#[cfg(test)]
mod proxy;
#[cfg(test)]
mod raw;
#[cfg(test)]
mod real_opencode;
#[cfg(test)]
mod real_proxy;
#[cfg(test)]
mod renewal;
#[cfg(test)]
mod rig;
#[cfg(test)]
mod streaming;
#[cfg(test)]
mod turns;
