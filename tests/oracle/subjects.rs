//! The two who are compared.

use anyhow::Result;
use bpvs_tests::oracle::bpvs::Bpvs;
use bpvs_tests::oracle::ipvs::Ipvs;
use bpvs_tests::oracle::modelled::Modelled;
use bpvs_tests::oracle::network::Network;
use bpvs_tests::oracle::played::Played;
use bpvs_tests::oracle::subject::Subject;

use crate::options::Against;

/// The one who is right.
pub(crate) fn reference(against: Against) -> Result<Box<dyn Subject>> {
    Ok(match against {
        Against::Ipvs => {
            let network = Network::new("ipvs")?;
            Box::new(Played::new(Ipvs::open(network.director())?, network))
        }
        Against::Model => Box::new(Modelled::default()),
    })
}

/// bpvs.
pub(crate) fn tested() -> Result<Box<dyn Subject>> {
    let network = Network::new("bpvs")?;
    Ok(Box::new(Played::new(Bpvs::new(&network)?, network)))
}
