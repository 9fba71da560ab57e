//! While the tenant's volumes are being removed: a volume that was made already is found, so that the claim whose creation
//! was under way comes to its end; none is made.

use super::{Attempt, Created, Creation};
use crate::error::{Error, Exhausted};
use crate::placement::Plan;

impl Creation<'_> {
    /// Looks at every place where an earlier call may have made the disk. One that can't be looked at is no answer.
    pub(super) async fn only_if_there(&self, plan: &Plan) -> Result<Created, Error> {
        for candidate in &plan.candidates {
            let volume = self.volume(candidate, plan)?;
            match self.unless_there(volume, Exhausted::Storage).await? {
                Attempt::Made(volume, info) => {
                    return self.found(volume, &info, plan.only_on.clone());
                }
                Attempt::Refused(_) => {}
            }
        }
        Err(Error::Closed)
    }
}
