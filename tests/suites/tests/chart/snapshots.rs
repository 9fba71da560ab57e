//! What each chart renders, to the letter.

use anyhow::Result;

use crate::VALUES;
use crate::helm::{HALVES, Helm};

#[test]
fn what_the_charts_render_of_their_example_values_is_what_was_reviewed() -> Result<()> {
    let Some(helm) = Helm::find("chart: snapshots")? else {
        return Ok(());
    };
    for half in HALVES {
        for values in VALUES {
            let rendered = helm.of_values(half, values)?;
            insta::assert_snapshot!(format!("{}-{values}", half.name()), rendered.text);
        }
    }
    Ok(())
}
