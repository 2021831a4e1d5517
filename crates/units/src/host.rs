//! Names of hosts.

/// Are both names for one host (`docs/spec/config-and-cli.md` 1.6)? Case does not count; if only one has a domain, the
/// first labels decide.
#[must_use]
pub fn same_host(a: &str, b: &str) -> bool {
    if a.eq_ignore_ascii_case(b) {
        return true;
    }
    match (a.split_once('.'), b.split_once('.')) {
        (Some((label, _)), None) => label.eq_ignore_ascii_case(b),
        (None, Some((label, _))) => label.eq_ignore_ascii_case(a),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::same_host;

    #[test]
    fn a_domain_counts_where_both_have_one() {
        for (a, b, same) in [
            ("alpha", "ALPHA", true),
            ("alpha", "alpha.example.com", true),
            ("Alpha.Example.com", "alpha.example.COM", true),
            ("alpha.here", "alpha.there", false),
            ("alpha", "bravo.example.com", false),
            ("10.1.1.1", "10.1.1.2", false),
        ] {
            assert_eq!((same_host(a, b), same_host(b, a)), (same, same), "{a} {b}");
        }
    }
}
