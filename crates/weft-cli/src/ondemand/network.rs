//! A network as ADDRESS/BITS, and the address that this machine has in it.

use crate::error::CliError;
use std::ffi::CStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ptr;
use std::str::FromStr;

/// A network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    bits: u32,
}

/// A text that is no network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected ADDRESS/BITS, such as 10.0.0.0/8")]
pub struct ParseNetworkError;

impl FromStr for Network {
    type Err = ParseNetworkError;
    fn from_str(text: &str) -> Result<Network, ParseNetworkError> {
        let (address, bits) = text.split_once('/').ok_or(ParseNetworkError)?;
        let address: IpAddr = address.parse().map_err(|_| ParseNetworkError)?;
        let bits = bits.parse().map_err(|_| ParseNetworkError)?;
        let width = if address.is_ipv4() { 32 } else { 128 };
        if bits > width { Err(ParseNetworkError) } else { Ok(Network { address, bits }) }
    }
}

impl std::fmt::Display for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

impl Network {
    fn has(&self, address: IpAddr) -> bool {
        // As numbers of 128 bits, of which the first ones are compared.
        let number = |address: IpAddr| match address {
            IpAddr::V4(v4) => u128::from(v4.to_bits()) << 96,
            IpAddr::V6(v6) => v6.to_bits(),
        };
        let is_same_kind = self.address.is_ipv4() == address.is_ipv4();
        let differ = number(self.address) ^ number(address);
        is_same_kind && (self.bits == 0 || differ.leading_zeros() >= self.bits)
    }
}

/// The address that this machine has in a network.
///
/// # Errors
/// If it has none.
pub(super) fn address_in(network: &str) -> Result<IpAddr, CliError> {
    let network: Network = network.parse().map_err(|error: ParseNetworkError| CliError::Usage {
        message: format!("--network {network}: {error}"),
        hint: "name the network that all hosts are in".into(),
    })?;
    let own = own_addresses().map_err(|error| CliError::Failed {
        message: format!("the kernel does not say which addresses this host has: {error}"),
        hint: "the operating system's word above says why".into(),
    })?;
    own.iter().map(|(_, address)| *address).find(|address| network.has(*address)).ok_or_else(|| {
        let own: Vec<String> = own.iter().map(|(name, address)| format!("{address} ({name})")).collect();
        CliError::Failed {
            message: format!("this host has no address in the network {network}, but {}", own.join(", ")),
            hint: "name the network that all hosts are in with --network".into(),
        }
    })
}

/// The addresses of this machine with the names of their interfaces. Those of IPv6 that hold only within a
/// link are left out.
fn own_addresses() -> std::io::Result<Vec<(String, IpAddr)>> {
    let mut first: *mut libc::ifaddrs = ptr::null_mut();
    // SAFETY: the kernel's list is put where the pointer to it is, which lives until the call returns.
    if unsafe { libc::getifaddrs(&mut first) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    let (mut found, mut next) = (Vec::new(), first);
    while !next.is_null() {
        // SAFETY: the list is not freed before the end, and each entry is followed by another one or by null.
        let entry = unsafe { &*next };
        next = entry.ifa_next;
        if entry.ifa_addr.is_null() {
            continue;
        }
        // SAFETY: the name is a string that ends in NUL (getifaddrs(3)).
        let name = unsafe { CStr::from_ptr(entry.ifa_name) }.to_string_lossy().into_owned();
        // SAFETY: the family says which structure the address is.
        let address = unsafe {
            match i32::from((*entry.ifa_addr).sa_family) {
                libc::AF_INET => {
                    let v4 = &*entry.ifa_addr.cast::<libc::sockaddr_in>();
                    IpAddr::V4(Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr)))
                }
                libc::AF_INET6 => {
                    let v6 = &*entry.ifa_addr.cast::<libc::sockaddr_in6>();
                    IpAddr::V6(Ipv6Addr::from(v6.sin6_addr.s6_addr))
                }
                _ => continue,
            }
        };
        if !matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local()) {
            found.push((name, address));
        }
    }
    // SAFETY: the list is the kernel's, and nothing of it is used any more.
    unsafe { libc::freeifaddrs(first) };
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_has_some_addresses() {
        let has = |network: &str, address: &str| {
            network.parse::<Network>().expect("a network").has(address.parse().expect("an address"))
        };
        assert!(has("10.0.0.0/8", "10.255.0.1") && !has("10.0.0.0/8", "11.0.0.1"));
        assert!(has("10.77.0.254/24", "10.77.0.1") && !has("10.77.0.254/32", "10.77.0.1"));
        assert!(has("0.0.0.0/0", "1.2.3.4") && !has("0.0.0.0/0", "::1"));
        assert!(has("fd00::/8", "fd12::1") && !has("fd00::/8", "fe80::1"));
        for text in ["", "10.0.0.0", "10.0.0.0/33", "10.0.0/8", "::/129", "a/8"] {
            assert_eq!(text.parse::<Network>(), Err(ParseNetworkError), "{text}");
        }
    }

    #[test]
    fn this_machine_has_an_address_in_the_loopback_network() {
        assert_eq!(address_in("127.0.0.0/8").ok(), Some(IpAddr::from([127, 0, 0, 1])));
        let error = address_in("255.255.255.255/32").expect_err("no host has it").to_string();
        assert!(error.contains("127.0.0.1 (lo)"), "{error}");
    }
}
