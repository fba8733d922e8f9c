package meshgen

import (
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// Change is one that was made.
type Change struct {
	// At is the moment of the rename.
	At time.Time
	// Marker are bytes that no resource had before the change, and that the last
	// changed one has after it.
	Marker string
}

// EditedRoute is the service whose VirtualService is edited.
func (s Spec) EditedRoute() int {
	for i := s.Services - 1; i >= 0; i-- {
		if s.HasRoute(i) {
			return i
		}
	}
	return 0
}

// EditedHosts is the service of which an endpoint is replaced: the last one, of
// which no proxy of the fleet is, if there is such a one.
func (s Spec) EditedHosts() int { return s.Services - 1 }

// Spare reports whether the mesh has endpoints that are no proxies: to replace
// the address of a proxy ends its stream.
func (s Spec) Spare() bool {
	i := s.EditedHosts()
	return !s.isProxy(i, s.endpointsOf(i)-1)
}

// EditRoute writes the VirtualService of a service anew.
func (s Spec) EditRoute(dir string, service, revision int) (Change, error) {
	marker := s.RouteMarker(revision)
	at, err := replace(filepath.Join(dir, s.routeFile(service)), s.route(service, marker))
	return Change{at, marker}, err
}

// maxRevision is how many endpoints have different addresses.
const maxRevision = 100 * 100 * 50

// ReplaceEndpoint gives the last endpoint of a service another address.
func (s Spec) ReplaceEndpoint(dir string, service, revision int) (Change, error) {
	if revision < 0 || revision >= maxRevision {
		return Change{}, fmt.Errorf("revision %d: there are %d", revision, maxRevision)
	}
	marker := s.EndpointMarker(revision)
	at, err := replace(filepath.Join(dir, s.hostsFile(service)), s.hosts(service, s.endpointsOf(service)-1, marker))
	return Change{at, marker}, err
}

// EndpointMarker is the address that a revision gives. Each of its numbers has
// three digits: no address begins another.
func (Spec) EndpointMarker(revision int) string {
	return fmt.Sprintf("10.%d.%d.%d", 200+revision/10_000, 100+revision/100%100, 100+revision%100)
}

// RouteMarker is the word that a revision gives.
func (Spec) RouteMarker(revision int) string { return fmt.Sprintf("r%06d", revision) }

// others is what the revisions of those begin with of which nothing is looked
// for when many are edited.
const others = 500_000

// Share is what of all services a checkout edits.
const Share = 0.2

func stride(share float64) int { return max(1, int(1/share)) }

// lastOfMany is the last service whose routes are edited with a share of all.
func (s Spec) lastOfMany(share float64) (last int) {
	for i := 0; i < s.Services; i += stride(share) {
		if s.HasRoute(i) {
			last = i
		}
	}
	return last
}

// EditMany edits the routes of every service of a share, or its hosts where it
// has no routes, as the checkout of another branch does. The marker is of the
// last routes.
func (s Spec) EditMany(dir string, share float64, revision int) (Change, int, error) {
	n := 0
	every, last := stride(share), s.lastOfMany(share)
	var out Change
	for i := 0; i < s.Services; i += every {
		n++
		if !s.HasRoute(i) {
			// A service without routes changes its hosts.
			if s.isProxy(i, s.endpointsOf(i)-1) {
				continue
			}
			if _, err := s.ReplaceEndpoint(dir, i, revision*s.Services+i); err != nil {
				return Change{}, n, err
			}
			continue
		}
		word := revision + others
		if i == last {
			word = revision
		}
		c, err := s.EditRoute(dir, i, word)
		if err != nil {
			return Change{}, n, err
		}
		if i == last {
			out = c
		}
	}
	return out, n, nil
}

// replace writes beside the file and renames over it.
func replace(path, content string) (time.Time, error) {
	tmp := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".new")
	if err := os.WriteFile(tmp, []byte(content), 0o600); err != nil {
		return time.Time{}, fmt.Errorf("changing a mesh: %w", err)
	}
	at := time.Now()
	if err := os.Rename(tmp, path); err != nil {
		return time.Time{}, fmt.Errorf("changing a mesh: %w", err)
	}
	return at, nil
}
