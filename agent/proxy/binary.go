package proxy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// MinMajor and MinMinor are the oldest release of Envoy that is supported.
const (
	MinMajor = 1
	MinMinor = 36
)

// Version is a release of Envoy.
type Version struct{ Major, Minor, Patch int }

// String is the version with dots.
func (v Version) String() string { return fmt.Sprintf("%d.%d.%d", v.Major, v.Minor, v.Patch) }

// Binary is an Envoy on this host's disk.
type Binary struct {
	Path    string
	Version Version
}

// defaultPaths are where distributions, tarballs and Istio's package install Envoy.
var defaultPaths = []string{ //nolint:gochecknoglobals // read-only
	"/usr/local/bin/envoy", "/usr/bin/envoy", "/opt/envoy/bin/envoy", "/opt/fairlead/bin/envoy", "/usr/lib/fairlead/envoy",
}

// ErrNoBinary means that no usable Envoy was found.
var ErrNoBinary = errors.New("no usable Envoy")

// FindBinary returns the named binary, or the first usable one in $PATH and the default paths.
// It runs it with --version, in the environment env.
func FindBinary(ctx context.Context, named string, env []string) (Binary, error) {
	if named != "" {
		path, err := exec.LookPath(named)
		if err != nil {
			return Binary{}, fmt.Errorf("%w: %q cannot be run: %w", ErrNoBinary, named, err)
		}
		return inspect(ctx, path, env)
	}
	var tried []error
	seen := map[string]bool{}
	for _, path := range candidates() {
		if seen[path] {
			continue
		}
		seen[path] = true
		b, err := inspect(ctx, path, env)
		if err == nil {
			return b, nil
		}
		if !errors.Is(err, os.ErrNotExist) {
			tried = append(tried, err)
		}
	}
	return Binary{}, errors.Join(fmt.Errorf(
		"%w: none in $PATH nor at %s: install Envoy %d.%d or later, or name one with --envoy PATH",
		ErrNoBinary, strings.Join(defaultPaths, ", "), MinMajor, MinMinor,
	), errors.Join(tried...))
}

func candidates() []string {
	var c []string
	if path, err := exec.LookPath("envoy"); err == nil {
		c = append(c, path)
	}
	return append(c, defaultPaths...)
}

func inspect(ctx context.Context, path string, env []string) (Binary, error) {
	if _, err := os.Stat(path); err != nil {
		return Binary{}, fmt.Errorf("looking for Envoy: %w", err)
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return Binary{}, fmt.Errorf("looking for Envoy: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "--version")
	cmd.Env = append([]string{}, env...) // nil would mean the agent's
	out, err := cmd.CombinedOutput()
	if err != nil {
		return Binary{}, fmt.Errorf("%w: running %q --version: %w: %.200q", ErrNoBinary, path, err, out)
	}
	v, ok := parseVersion(string(out))
	if !ok {
		return Binary{}, fmt.Errorf("%w: %q --version says no Envoy version: %.200q", ErrNoBinary, path, out)
	}
	if v.Major < MinMajor || v.Major == MinMajor && v.Minor < MinMinor {
		return Binary{}, fmt.Errorf("%w: %q is Envoy %s, and %d.%d is the oldest that is supported: install a later one, or name one with --envoy PATH",
			ErrNoBinary, path, v, MinMajor, MinMinor)
	}
	return Binary{Path: path, Version: v}, nil
}

// versionPattern is the middle of "HASH/1.40.0/Clean/RELEASE/BoringSSL".
var versionPattern = regexp.MustCompile(`version: [^/\s]*/(\d+)\.(\d+)\.(\d+)`)

func parseVersion(out string) (Version, bool) {
	m := versionPattern.FindStringSubmatch(out)
	if m == nil {
		return Version{}, false
	}
	var v Version
	for i, p := range []*int{&v.Major, &v.Minor, &v.Patch} {
		n, err := strconv.Atoi(m[i+1])
		if err != nil {
			return Version{}, false
		}
		*p = n
	}
	return v, true
}
