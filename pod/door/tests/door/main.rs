//! The pod's parts over real sockets: the door against an upstream that the test controls, then supervisor and door
//! against a real opencode.

#[cfg(test)]
mod class;
#[cfg(test)]
mod events;
#[cfg(test)]
mod fence;
#[cfg(test)]
mod frames;
#[cfg(test)]
mod gate;
#[cfg(test)]
mod hop;
#[cfg(test)]
mod journal;
#[cfg(test)]
mod journal_real;
#[cfg(test)]
mod proxy;
#[cfg(test)]
mod raw;
#[cfg(test)]
mod real_opencode;
#[cfg(test)]
mod rig;
