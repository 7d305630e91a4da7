"""What a release takes: the public names and how they changed, versions, the checklist. No part of the package."""
