//! What the system says of an error, for people.

/// The text without the numbers that the standard library adds to the system's words: ` (os error 2)`.
#[must_use]
pub fn plain(text: &str) -> String {
    const NUMBER: &str = " (os error ";
    let mut parts = text.split(NUMBER);
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once(')').filter(|(number, _)| number.bytes().all(|byte| byte.is_ascii_digit())) {
            Some((_, rest)) => out += rest,
            None => out = out + NUMBER + part,
        }
    }
    out
}

#[cfg(test)]
mod tests {
    #[test]
    fn numbers_of_errors_are_no_words_for_people() {
        for (text, expected) in [
            ("/dev/x: No such file or directory (os error 2)", "/dev/x: No such file or directory"),
            ("a: Busy (os error 16); b: Gone (os error 2).", "a: Busy; b: Gone."),
            ("what (os error is", "what (os error is"),
            ("an (os error x)", "an (os error x)"),
            ("", ""),
        ] {
            assert_eq!(super::plain(text), expected);
        }
        let real = std::fs::File::open("/nonexistent/file").unwrap_err().to_string();
        assert_eq!(super::plain(&real), "No such file or directory");
    }
}
