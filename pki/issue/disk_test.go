package issue_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/pki/svid"
)

// TestDiskOfTheServerIsFull: a token is not redeemed while that cannot be saved, which
// is no refusal, so that the host tries again; it is not spent by that. Hosts that have
// joined renew.
func TestDiskOfTheServerIsFull(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := start(t, settings{dir: dir})
	a := s.join(t, host(t, "web-1", "shop/web"))
	token, key := s.token(t, host(t, "web-2", "shop/web")), newKey(t)
	for _, full := range []string{"tokens", "hosts"} {
		path := filepath.Join(dir, full)
		if err := errors.Join(os.Rename(path, path+".away"), os.WriteFile(path, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		_, err := s.client(t).Join(t.Context(), token, key)
		if status.Code(err) != codes.Unavailable || errors.Is(err, svid.ErrRefused) {
			t.Errorf("%s: joining: %v", full, err)
		}
		if _, err := s.client(t).Renew(t.Context(), a); err != nil {
			t.Errorf("%s: renewing: %v", full, err)
		}
		if err := errors.Join(os.Remove(path), os.Rename(path+".away", path)); err != nil {
			t.Fatal(err)
		}
	}
	if !strings.Contains(s.log.String(), "needs space") {
		t.Errorf("the log does not say so:\n%s", s.log)
	}
	if _, err := s.client(t).Join(t.Context(), token, key); err != nil {
		t.Errorf("joining when there is space: %v", err)
	}
}
