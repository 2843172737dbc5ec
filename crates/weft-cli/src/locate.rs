//! Where the fabric is: an address, or the folder of a local fabric.
//!
//! It owns the order in which places are looked at. It never connects.

use crate::local::{Folder, LocalError};
use std::path::PathBuf;
use weft_rt::Addr;

/// The folder of a local fabric where none is named.
pub const FOLDER_DEFAULT: &str = "./weft-fabric";

/// What a user named as the fabric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FabricPlace {
    /// A manager's address.
    Address(Addr),
    /// The folder of a local fabric.
    Folder(PathBuf),
}

impl FabricPlace {
    /// Reads `IP:PORT`, `unix:PATH` or a folder's path; none: the default folder.
    pub fn new(named: Option<&str>) -> FabricPlace {
        match named.filter(|text| !text.is_empty()) {
            None => FabricPlace::Folder(FOLDER_DEFAULT.into()),
            Some(text) => match text.parse() {
                Ok(addr) => FabricPlace::Address(addr),
                Err(_) => FabricPlace::Folder(text.into()),
            },
        }
    }

    /// The addresses at which a manager may answer, best first; empty if there is no fabric at all.
    ///
    /// # Errors
    /// If there is a folder that cannot be read or understood.
    pub fn managers(&self) -> Result<Vec<Addr>, LocalError> {
        match self {
            FabricPlace::Address(addr) => Ok(vec![addr.clone()]),
            FabricPlace::Folder(path) => Folder::at(path).manager_addrs(),
        }
    }

    /// A command of `weft` as it has to be typed for this fabric.
    pub(crate) fn command(&self, command: &str) -> String {
        let is_known =
            std::env::var("WEFT_FABRIC").is_ok_and(|named| FabricPlace::new(Some(&named)) == *self);
        match command.strip_prefix("weft ") {
            Some(rest) if !is_known && *self != FabricPlace::new(None) => {
                format!("weft --fabric {self} {rest}")
            }
            _ => command.to_owned(),
        }
    }

    /// What to do if no manager answers there.
    pub fn hint(&self) -> String {
        match self {
            FabricPlace::Address(_) => {
                "is the manager running, and is its address right? attached volumes go on without it".into()
            }
            FabricPlace::Folder(path) if Folder::at(path).has_running_member() => {
                let at = match path.as_os_str() == FOLDER_DEFAULT {
                    true => String::new(),
                    false => format!(" --fabric {}", path.display()),
                };
                format!("its nodes run without the manager: `weft{at} manager start` brings it back")
            }
            FabricPlace::Folder(path) if path.as_os_str() == FOLDER_DEFAULT => {
                "start a fabric with `weft up`, or name one with --fabric or WEFT_FABRIC".into()
            }
            FabricPlace::Folder(path) => {
                format!("start it with `weft up --dir {}`, or name another with --fabric", path.display())
            }
        }
    }
}

impl std::fmt::Display for FabricPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            FabricPlace::Address(addr) => addr.fmt(f),
            FabricPlace::Folder(path) => path.display().fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_names_the_fabric_where_it_has_to() {
        let command = |place: Option<&str>| FabricPlace::new(place).command("weft node start a");
        assert_eq!(command(None), "weft node start a");
        assert_eq!(command(Some("/nowhere/f")), "weft --fabric /nowhere/f node start a");
        assert_eq!(FabricPlace::new(Some("/f")).command("fstrim"), "fstrim");
    }

    #[test]
    fn a_place_is_an_address_or_a_folder() {
        let address = |text: &str| FabricPlace::Address(text.parse().expect("an address"));
        assert_eq!(FabricPlace::new(Some("127.0.0.1:4800")), address("127.0.0.1:4800"));
        assert_eq!(FabricPlace::new(Some("unix:/run/weft.sock")), address("unix:/run/weft.sock"));
        assert_eq!(FabricPlace::new(Some("/srv/fabric")), FabricPlace::Folder("/srv/fabric".into()));
        assert_eq!(FabricPlace::new(Some("")), FabricPlace::new(None));
    }
}
