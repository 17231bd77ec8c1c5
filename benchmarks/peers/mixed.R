# Maximum likelihood of a random intercept and slope by lme4: mixed.R ROWS.csv FITS
# A block of so many fits is timed, since the clock of system.time ticks in milliseconds. A fit before it warms up.
suppressPackageStartupMessages(library(lme4))
words <- commandArgs(trailingOnly = TRUE)
rows <- read.csv(words[1], colClasses = c(device = "character"))
fits <- as.integer(words[2])
one <- function() lmer(y ~ days + (days | device), rows, REML = FALSE)
fit <- one()
took <- system.time(for (i in seq_len(fits)) fit <- one())[["elapsed"]] / fits
cat(sprintf('{"seconds": %.9f, "log_likelihood": %.9f}\n', took, as.numeric(logLik(fit))))
