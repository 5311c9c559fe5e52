//go:build tools

// Package tools names the program that make test-node builds, for go mod tidy. Go 1.23 has no tool directive yet.
package tools

import _ "github.com/waku-org/go-waku/cmd/waku"
