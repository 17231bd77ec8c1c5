# Maximum likelihood of a random intercept and slope by lme4: mixed.R ROWS.csv FITS
# The median of so many fits, by the clock that ticks in microseconds (that of system.time does in milliseconds). A fit before it warms up.
suppressPackageStartupMessages(library(lme4))
words <- commandArgs(trailingOnly = TRUE)
rows <- read.csv(words[1], colClasses = c(device = "character"))
fits <- as.integer(words[2])
one <- function() lmer(y ~ days + (days | device), rows, REML = FALSE)
fit <- one()
timed <- function(i) {
  begun <- Sys.time()
  one()
  as.numeric(Sys.time()) - as.numeric(begun)
}
took <- median(vapply(seq_len(fits), timed, 0))
cat(sprintf('{"seconds": %.9f, "log_likelihood": %.9f}\n', took, as.numeric(logLik(fit))))
