package workload

import (
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/agent/credential"
)

// TestFilesAreInTheStatus: certificates in files stand in the status as credentials do, by path, with their
// state and end, whichever name the secret has.
func TestFilesAreInTheStatus(t *testing.T) {
	t.Parallel()
	s, _ := fileServer(t)
	ca := newFolderCA(t, t.TempDir())
	in := func(file string) string { return filepath.Join(ca.dir, file, "tls.crt") }
	keyOf := func(file string) string { return filepath.Join(ca.dir, file, "tls.key") }
	ends := time.Now().Add(time.Hour).Truncate(time.Second)
	for _, folder := range []string{"good", "half"} {
		ca.put(t, folder, ends)
	}
	ca.put(t, "old", time.Now().Add(-time.Hour))
	ca.write(t, "half", "tls.key", "")
	ca.write(t, "text", "tls.crt", "no certificate")
	_, _, other := ca.issue(t, "other", ends)
	ca.write(t, "text", "tls.key", other)
	ca.put(t, "mixed", ends)
	ca.write(t, "mixed", "tls.key", other)
	ca.write(t, "roots", "tls.crt", ca.rootPEM())
	ca.write(t, "roots", "crl", ca.revoke(t))
	pair := func(file string) []string {
		cert, key := in(file), keyOf(file)
		return []string{certPrefix + cert + "~" + key, filesPrefix + url.Values{"cert": {cert}, "key": {key}}.Encode()}
	}
	roots := func(file string) []string {
		return []string{rootPrefix + in(file), filesPrefix + url.Values{"ca": {in(file)}}.Encode(), filesPrefix + url.Values{"ca": {in(file)}, "crl": {filepath.Join(ca.dir, "roots", "crl")}}.Encode()}
	}
	for _, c := range []struct {
		names       []string
		file        string
		authorities bool
		state       credential.State
	}{
		{pair("good"), "good", false, credential.Ready},
		{pair("old"), "old", false, credential.Expired},
		{pair("absent"), "absent", false, credential.Missing},
		{pair("half"), "half", false, credential.Broken},
		{pair("text"), "text", false, credential.Broken},
		{pair("mixed"), "mixed", false, credential.Mismatch},
		{roots("roots"), "roots", true, credential.Ready},
		{roots("absent"), "absent", true, credential.Missing},
		{roots("text"), "text", true, credential.Broken},
	} {
		for _, name := range c.names {
			if err := s.useFile(name); err != nil {
				t.Fatal(err)
			}
			list := s.Credentials()
			if len(list) != 1 {
				t.Fatalf("%s: %d in the status", name, len(list))
			}
			got := list[0]
			if got.Name != in(c.file) || got.Authorities != c.authorities || got.State != c.state || (got.Reason == "") != (c.state == credential.Ready) {
				t.Errorf("%s: %+v, want %s", name, got, c.state)
			}
			if c.state == credential.Ready && got.NotAfter.IsZero() || strings.Contains(got.Reason, "PRIVATE") {
				t.Errorf("%s: %+v", name, got)
			}
			s.mu.Lock()
			version := absentVersion
			if now := s.files[name].now; now != nil {
				version = now.version
			}
			s.mu.Unlock()
			s.reject(name, version, "no such curve")
			if want := c.state == credential.Ready || c.state == credential.Expired; want != (s.Credentials()[0].State == credential.Rejected) {
				t.Errorf("%s: after Envoy rejected it: %+v", name, s.Credentials()[0])
			}
			s.leaveFile(name)
		}
	}
}

// TestPublicRootsInTheStatus: those of the host are reported only while nobody can use them.
func TestPublicRootsInTheStatus(t *testing.T) {
	t.Parallel()
	s, dir := fileServer(t)
	path := filepath.Join(dir, "roots.pem")
	s.c.SystemRootFiles = []string{path}
	if err := s.useFile(SystemRoots); err != nil {
		t.Fatal(err)
	}
	if list := s.Credentials(); len(list) != 1 || list[0].Name != system || list[0].State != credential.Missing {
		t.Errorf("without roots: %+v", list)
	}
	pemFiles(t, 1, path, "")
	s.refreshFiles()
	if list := s.Credentials(); len(list) != 0 {
		t.Errorf("with roots: %+v", list)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	s.refreshFiles()
	if list := s.Credentials(); len(list) != 1 || !list[0].Served {
		t.Errorf("without roots again: %+v", list)
	}
}
