//! Amounts as Kubernetes writes them (`500m`, `1.5`, `2Gi`, `1e9`): read, compared, and written one way. Pure.

use std::fmt;

use k8s_openapi::{
    api::core::v1::ResourceRequirements,
    apimachinery::pkg::{api::resource::Quantity, util::intstr::IntOrString},
};

/// Billionths of one.
const ONE: i128 = 1_000_000_000;

/// Most digits that are read: the largest value, with the largest suffix, stays within an `i128`.
const DIGITS_MAX: usize = 18;

/// An amount, exact to a billionth. Finer ones are rounded up, as Kubernetes does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Amount(i128);

/// Text that is no amount.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no amount: write one such as 500m, 1.5, 2Gi or 1e9")]
pub struct AmountError(String);

impl Amount {
    /// Reads a number, or text such as `2Gi`. Negative ones are refused: nothing here can be less than nothing.
    pub fn parse(text: &str) -> Result<Self, AmountError> {
        parse(text).ok_or_else(|| AmountError(text.chars().take(64).collect()))
    }

    /// Reads what a manifest says.
    pub fn of(value: &IntOrString) -> Result<Self, AmountError> {
        match value {
            IntOrString::Int(number) => Self::parse(&number.to_string()),
            IntOrString::String(text) => Self::parse(text),
        }
    }

    /// As the pod has it.
    pub fn quantity(self) -> Quantity {
        Quantity(self.to_string())
    }
}

impl fmt::Display for Amount {
    /// One text for one amount, however it was written: whole numbers with the largest binary suffix that divides
    /// them, else thousandths, else billionths.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 % ONE != 0 {
            let thousandth = ONE / 1000;
            return if self.0 % thousandth == 0 {
                write!(f, "{}m", self.0 / thousandth)
            } else {
                write!(f, "{}n", self.0)
            };
        }
        let (mut whole, mut suffix) = (self.0 / ONE, "");
        for larger in ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"] {
            if whole == 0 || whole % 1024 != 0 {
                break;
            }
            (whole, suffix) = (whole / 1024, larger);
        }
        write!(f, "{whole}{suffix}")
    }
}

fn parse(text: &str) -> Option<Amount> {
    let text = text.strip_prefix('+').unwrap_or(text);
    let end = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.len() + fraction.len() == 0 || whole.len() > DIGITS_MAX || fraction.len() > DIGITS_MAX {
        return None;
    }
    let digits: i128 = format!("{whole}{fraction}").parse().ok()?;
    let (numerator, denominator) = scale(suffix)?;
    let denominator = denominator.checked_mul(10_i128.checked_pow(u32::try_from(fraction.len()).ok()?)?)?;
    let value = digits.checked_mul(numerator)?.checked_mul(ONE)?;
    Some(Amount(value / denominator + i128::from(value % denominator != 0)))
}

/// What one of a suffix is, as a fraction.
fn scale(suffix: &str) -> Option<(i128, i128)> {
    let power = |base: i128, exponent: u32| base.checked_pow(exponent);
    Some(match suffix {
        "" => (1, 1),
        "n" => (1, ONE),
        "u" => (1, 1_000_000),
        "m" => (1, 1000),
        "k" => (1000, 1),
        "M" => (power(1000, 2)?, 1),
        "G" => (power(1000, 3)?, 1),
        "T" => (power(1000, 4)?, 1),
        "P" => (power(1000, 5)?, 1),
        "E" => (power(1000, 6)?, 1),
        "Ki" => (1024, 1),
        "Mi" => (power(1024, 2)?, 1),
        "Gi" => (power(1024, 3)?, 1),
        "Ti" => (power(1024, 4)?, 1),
        "Pi" => (power(1024, 5)?, 1),
        "Ei" => (power(1024, 6)?, 1),
        _ => {
            let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
            let size = power(10, exponent.unsigned_abs())?;
            if exponent < 0 { (1, size) } else { (size, 1) }
        }
    })
}

/// The resource of which more is asked for than may be used, with both amounts; the cluster refuses such a pod.
pub fn above_limit(resources: &ResourceRequirements) -> Option<(String, Quantity, Quantity)> {
    let (requests, limits) = (resources.requests.as_ref()?, resources.limits.as_ref()?);
    requests.iter().find_map(|(name, request)| {
        let limit = limits.get(name)?;
        let above = Amount::parse(&request.0).ok()? > Amount::parse(&limit.0).ok()?;
        above.then(|| (name.clone(), request.clone(), limit.clone()))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn one_amount_has_one_text() {
        for (texts, expected) in [
            (&["1.5", "1500m", "1.500", "+1.5"][..], "1500m"),
            (&["0.1", "100m", ".1", "1e-1"], "100m"),
            (&["2048Mi", "2Gi", "2147483648"], "2Gi"),
            (&["1e9", "1G", "1000M", "1E9"], "1000000000"),
            (&["0", "0Gi", "0.0"], "0"),
            (&["1u", "0.000001"], "1000n"),
            (&["1e-12"], "1n"),
            (&["2", "2.", "2000m"], "2"),
            (&["1E"], "976562500000000Ki"),
        ] {
            for text in texts {
                assert_eq!(Amount::parse(text).unwrap().to_string(), expected, "{text}");
            }
        }
        assert_eq!(Amount::of(&IntOrString::Int(3)).unwrap().to_string(), "3");
    }

    #[test]
    fn what_is_no_amount_is_refused() {
        for text in ["", ".", "Gi", "1GB", "-1", "1 Gi", "1e99", "1e", "1..2", "9999999999999999999", "1Gi "]
        {
            assert!(Amount::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn more_than_may_be_used_is_found() {
        let amounts = |cpu: &str| Some([("cpu".to_owned(), Quantity(cpu.to_owned()))].into());
        let resources = |request, limit| ResourceRequirements {
            requests: amounts(request),
            limits: amounts(limit),
            claims: None,
        };
        assert_eq!(above_limit(&resources("600m", "0.6")), None);
        assert_eq!(above_limit(&resources("2", "600m")).unwrap().0, "cpu");
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in ".{0,40}") {
            if let Ok(amount) = Amount::parse(&text) {
                prop_assert_eq!(Amount::parse(&amount.to_string()), Ok(amount));
            }
        }

        #[test]
        fn what_looks_like_an_amount_is_read_or_refused(text in "[0-9]{0,19}[.]?[0-9]{0,19}(|n|m|Ki|Ei|E|e[0-9]{1,3})") {
            if let Ok(amount) = Amount::parse(&text) {
                let again = amount.to_string();
                // What is too large to be written in so many digits is read all the same.
                if again.len() <= DIGITS_MAX {
                    prop_assert_eq!(Amount::parse(&again), Ok(amount));
                }
            }
        }
    }
}
