//! A pod as real processes: the programs berth-supervisor and berth-sidecar around a real opencode and a scripted model,
//! and whatever may die in it.

#[cfg(test)]
mod kills;
#[cfg(test)]
mod matrix;
#[cfg(test)]
mod memory;
#[cfg(test)]
mod pod;
#[cfg(test)]
#[cfg(test)]
mod processes;
#[cfg(test)]
mod program;
#[cfg(test)]
mod restart;
#[cfg(test)]
mod secrecy;
#[cfg(test)]
mod secret;
#[cfg(test)]
mod standstill;
#[cfg(test)]
mod start_order;
#[cfg(test)]
mod subscriber;

#[cfg(test)]
use berth_testkit::wait;
