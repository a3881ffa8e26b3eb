module sharingaffinity.dev/e2e/test

go 1.26.0
