//! `mount.weft`, which mount(8) calls for `mount -t weft` and for lines of `/etc/fstab`: turns its arguments
//! into those of `weft mount`.

use crate::error::CliError;
use std::ffi::{OsStr, OsString};
use std::path::Path;

/// The name by which mount(8) calls the program: that of a link to it, in /sbin.
const NAME: &str = "mount.weft";

/// Options that mean what a mount does anyway, or that are for others who read fstab(5). Times of access are
/// not kept, so nothing is to be said about them.
const IGNORED: &[&str] = &[
    "rw",
    "defaults",
    "auto",
    "noauto",
    "fail",
    "nofail",
    "_netdev",
    "user",
    "nouser",
    "users",
    "owner",
    "group",
    "suid",
    "dev",
    "exec",
    "async",
    "atime",
    "noatime",
    "diratime",
    "nodiratime",
    "relatime",
    "norelatime",
    "strictatime",
    "lazytime",
    "nolazytime",
    "loud",
    "silent",
];

/// Options that `weft mount` has as well.
const FLAGS: &[&str] = &["nosuid", "nodev", "noexec"];

/// The command line of `weft`, if mount(8) has called the program. Empty if nothing is to be mounted (`-f`).
///
/// # Errors
/// If an option makes no sense here.
pub fn words_for_mount(args: &[OsString]) -> Result<Option<Vec<OsString>>, CliError> {
    let called = args.first().map(Path::new).and_then(Path::file_name);
    if called != Some(OsStr::new(NAME)) {
        return Ok(None);
    }
    let (mut places, mut options, mut is_fake, mut is_sloppy) = (Vec::new(), Vec::new(), false, false);
    let mut rest = args[1..].iter();
    while let Some(word) = rest.next() {
        let text = word.to_string_lossy();
        match text.strip_prefix('-') {
            Some("o") => {
                let list =
                    rest.next().ok_or_else(|| usage("-o is the last word", "name options behind it"))?;
                options.extend(list.to_string_lossy().split(',').map(str::to_owned));
            }
            // The type is known, and nothing is to be written to /etc/mtab.
            Some("t") => drop(rest.next()),
            Some("N") => return Err(usage("mounts in other namespaces are not made", "use nsenter(1)")),
            Some(flags) if flags.chars().all(|flag| "fnsv".contains(flag)) => {
                is_fake |= flags.contains('f');
                is_sloppy |= flags.contains('s');
            }
            Some(_) => return Err(usage(&format!("{text} is no option"), "mount(8) says what there is")),
            None => places.push(word.clone()),
        }
    }
    let [name, folder] = &places[..] else {
        let found = format!("{NAME} takes a file system and a folder, not {} words", places.len());
        return Err(usage(&found, "mount -t weft home /mnt/home -o fabric=10.0.0.1:4800"));
    };
    if is_fake {
        return Ok(Some(Vec::new()));
    }
    let mut words: Vec<OsString> = ["weft", "mount"].map(OsString::from).into();
    words.extend([name.clone(), folder.clone()]);
    for option in options.iter().filter(|option| !option.is_empty()) {
        match words_of(option) {
            Some(of_option) => words.extend(of_option.into_iter().map(OsString::from)),
            None if is_sloppy => {}
            None => {
                let known = "known are fabric=PLACE, timeout=SPAN, log-file=FILE, ro, sync, over-io-uring, \
                             nosuid, nodev and noexec";
                return Err(usage(&format!("mount option '{option}' is not known"), known));
            }
        }
    }
    Ok(Some(words))
}

/// The arguments of `weft mount` for an option of mount(8); `None` if the option is not known.
fn words_of(option: &str) -> Option<Vec<String>> {
    if let Some((name, value)) = option.split_once('=') {
        return match name {
            "fabric" | "timeout" | "log-file" => Some(vec![format!("--{name}"), value.to_owned()]),
            "comment" => Some(Vec::new()),
            name if name.starts_with("x-") => Some(Vec::new()),
            _ => None,
        };
    }
    match option {
        "ro" => Some(vec!["--read-only".to_owned()]),
        "sync" => Some(vec!["--write-through".to_owned()]),
        "over-io-uring" => Some(vec!["--over-io-uring".to_owned()]),
        flag if FLAGS.contains(&flag) => Some(vec!["--options".to_owned(), flag.to_owned()]),
        ignored if IGNORED.contains(&ignored) || ignored.starts_with("x-") => Some(Vec::new()),
        _ => None,
    }
}

fn usage(message: &str, hint: &str) -> CliError {
    CliError::Usage { message: message.to_owned(), hint: hint.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Result<Option<String>, String> {
        let args: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let joined = |words: Vec<OsString>| words.join(OsStr::new(" ")).into_string().expect("plain");
        words_for_mount(&args).map(|words| words.map(joined)).map_err(|error| error.to_string())
    }

    #[test]
    fn what_mount_says_becomes_a_command() {
        assert_eq!(words("weft mount home /mnt"), Ok(None));
        let line =
            "/sbin/mount.weft home /mnt -n -o rw,_netdev,x-systemd.automount,fabric=10.0.0.1:4800,timeout=2m";
        let asked = "weft mount home /mnt --fabric 10.0.0.1:4800 --timeout 2m";
        assert_eq!(words(line), Ok(Some(asked.to_owned())));
        let line = "mount.weft home /mnt -v -o ro,nosuid,over-io-uring -t weft";
        let asked = "weft mount home /mnt --read-only --options nosuid --over-io-uring";
        assert_eq!(words(line), Ok(Some(asked.to_owned())));
        assert_eq!(words("mount.weft home /mnt -fn -o what"), Ok(Some(String::new())));
        assert_eq!(words("mount.weft home /mnt -s -o what"), Ok(Some("weft mount home /mnt".to_owned())));
    }

    #[test]
    fn what_is_not_known_is_refused() {
        for (line, said) in [
            ("mount.weft home", "not 1 words"),
            ("mount.weft home /mnt -o remount", "'remount' is not known"),
            ("mount.weft home /mnt -o", "last word"),
            ("mount.weft home /mnt -x", "-x is no option"),
            ("mount.weft home /mnt -N 7", "namespaces"),
        ] {
            assert!(words(line).is_err_and(|error| error.contains(said)), "{line}");
        }
    }
}
