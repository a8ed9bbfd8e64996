"""What the scripts of evidence share: a protocol that is fixed first, cells that are run once and resumed, paired statistics, pages."""
