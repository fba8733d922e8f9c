package credential

import (
	"crypto/elliptic"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// folder is one folder as somebody may have left it.
type folder struct {
	files  map[string]string
	secret string // kubernetes://c, unless it says another
	state  State
	// says is in the reason.
	says string
	// envoy means that Envoy itself refuses these files, which is why they are.
	envoy bool
}

// folders are folders of all kinds, good and broken.
func folders(t *testing.T) map[string]folder {
	t.Helper()
	root := issue(t, "root", ecKey(t, elliptic.P256()), nil, nil)
	leaf := issue(t, "a.test", ecKey(t, elliptic.P256()), root, nil)
	other := issue(t, "a.test", ecKey(t, elliptic.P256()), root, nil)
	of := func(i *issued) map[string]string {
		return map[string]string{"tls.crt": i.chainPEM(), "tls.key": i.keyPEM(t)}
	}
	with := func(files map[string]string, more ...string) map[string]string {
		files = maps.Clone(files)
		for i := 0; i < len(more); i += 2 {
			files[more[i]] = more[i+1]
		}
		return files
	}
	made := func(bits int, curve elliptic.Curve, change func(*x509.Certificate)) map[string]string {
		if bits > 0 {
			return of(issue(t, "a.test", rsaKey(t, bits), root, change))
		}
		return of(issue(t, "a.test", ecKey(t, curve), root, change))
	}
	ca := func(list string) map[string]string {
		files := map[string]string{"ca.crt": root.chainPEM()}
		if list != "" {
			files["ca.crl"] = list
		}
		return files
	}
	later, earlier := time.Now().Add(time.Hour), time.Now().Add(-time.Minute)
	const auth = "kubernetes://c-cacert"
	rsaLeaf := issue(t, "a.test", rsaKey(t, 2048), root, nil)
	return map[string]folder{
		"pair":          {files: of(leaf), state: Ready},
		"generic_names": {files: map[string]string{"cert": leaf.chainPEM(), "key": leaf.keyPEM(t)}, state: Ready},
		// As in Istio, the names of generic Secrets win.
		"both_names":  {files: with(of(leaf), "cert", other.chainPEM(), "key", other.keyPEM(t)), state: Ready},
		"chain":       {files: with(of(leaf), "tls.crt", leaf.chainPEM()+root.chainPEM()), state: Ready},
		"comments":    {files: with(of(leaf), "tls.crt", "subject=a\n"+leaf.chainPEM(), "tls.key", "-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n"+leaf.keyPEM(t)), state: Ready},
		"rsa":         {files: of(rsaLeaf), state: Ready},
		"p384":        {files: made(0, elliptic.P384(), nil), state: Ready},
		"p521":        {files: made(0, elliptic.P521(), nil), state: Ready},
		"other_files": {files: with(of(leaf), "README", "text"), state: Ready},
		"expired":     {files: made(0, elliptic.P256(), func(c *x509.Certificate) { c.NotAfter = earlier }), state: Expired, says: "expired at"},
		"early":       {files: made(0, elliptic.P256(), func(c *x509.Certificate) { c.NotBefore = later }), state: Early, says: "not valid before"},

		"nothing":       {files: map[string]string{}, state: Missing, says: "it has: nothing"},
		"half":          {files: map[string]string{"tls.crt": leaf.chainPEM()}, state: Missing, says: `"tls.crt"`},
		"mixed_names":   {files: map[string]string{"tls.crt": leaf.chainPEM(), "key": leaf.keyPEM(t)}, state: Missing, says: "neither"},
		"empty":         {files: with(of(leaf), "tls.key", ""), state: Broken, says: "it is empty"},
		"text":          {files: with(of(leaf), "tls.crt", "hello\n"), state: Broken, says: "no certificate in PEM", envoy: true},
		"swapped":       {files: map[string]string{"tls.crt": leaf.keyPEM(t), "tls.key": leaf.chainPEM()}, state: Broken, says: "no certificate in PEM", envoy: true},
		"cut_cert":      {files: with(of(leaf), "tls.crt", leaf.chainPEM()[:200]), state: Broken, says: "not complete", envoy: true},
		"cut_chain":     {files: with(of(leaf), "tls.crt", leaf.chainPEM()+root.chainPEM()[:200]), state: Broken, says: "not complete", envoy: true},
		"cut_key":       {files: with(of(leaf), "tls.key", leaf.keyPEM(t)[:100]), state: Broken, says: "no private key in PEM", envoy: true},
		"not_a_cert":    {files: with(of(leaf), "tls.crt", pemOf("CERTIFICATE", []byte("no"))), state: Broken, says: "number 1 cannot be parsed", envoy: true},
		"not_a_key":     {files: with(of(leaf), "tls.key", pemOf("PRIVATE KEY", []byte("no"))), state: Broken, says: "cannot be used", envoy: true},
		"encrypted":     {files: with(of(leaf), "tls.key", pemOf("ENCRYPTED PRIVATE KEY", []byte("no"))), state: Broken, says: "encrypted", envoy: true},
		"of_another":    {files: with(of(leaf), "tls.key", other.keyPEM(t)), state: Mismatch, says: "do not belong together", envoy: true},
		"of_other_kind": {files: with(of(leaf), "tls.key", rsaLeaf.keyPEM(t)), state: Mismatch, says: "do not belong together", envoy: true},
		"chain_first":   {files: with(of(leaf), "tls.crt", root.chainPEM()+leaf.chainPEM()), state: Broken, says: "number 2; write it first", envoy: true},
		"rsa1024":       {files: made(1024, nil, nil), state: Broken, says: "1024 bits", envoy: true},
		"p224":          {files: made(0, elliptic.P224(), nil), state: Broken, says: "P-224", envoy: true},
		"ed25519":       {files: of(issue(t, "a.test", edKey(t), root, nil)), state: Broken, says: "Ed25519"},
		"must_staple": {files: made(0, elliptic.P256(), func(c *x509.Certificate) {
			c.ExtraExtensions = []pkix.Extension{{Id: mustStaple, Value: []byte{0x30, 0x03, 0x02, 0x01, 0x05}}}
		}), state: Broken, says: "must-staple"},
		"large": {files: with(of(leaf), "tls.crt", leaf.chainPEM()+strings.Repeat("#\n", maxFile)), state: Unreadable, says: "more than 1 MiB"},

		"authorities":            {secret: auth, files: ca(""), state: Ready},
		"authorities_two":        {secret: auth, files: map[string]string{"ca.crt": root.chainPEM() + issue(t, "next", ecKey(t, elliptic.P256()), nil, nil).chainPEM()}, state: Ready},
		"authorities_generic":    {secret: auth, files: map[string]string{"cacert": root.chainPEM(), "crl": root.list(t, later, leaf)}, state: Ready},
		"authorities_listed":     {secret: auth, files: ca(root.list(t, later, leaf)), state: Ready},
		"authorities_listed_two": {secret: auth, files: ca(root.list(t, later, leaf) + issue(t, "sub", ecKey(t, elliptic.P256()), nil, nil).list(t, later)), state: Ready},
		"authorities_missing":    {secret: auth, files: of(leaf), state: Missing, says: "neither ca.crt nor cacert"},
		"authorities_broken":     {secret: auth, files: map[string]string{"ca.crt": "no"}, state: Broken, says: "no certificate", envoy: true},
		"authorities_key":        {secret: auth, files: map[string]string{"ca.crt": leaf.keyPEM(t)}, state: Broken, says: "no certificate", envoy: true},
		// Envoy takes it for a list that revokes nothing.
		"list_broken":     {secret: auth, files: ca("no"), state: Broken, says: "no list of revoked"},
		"list_empty":      {secret: auth, files: with(ca(""), "ca.crl", ""), state: Broken, says: "it is empty"},
		"list_cut":        {secret: auth, files: ca(root.list(t, later, leaf)[:100]), state: Broken, says: "not complete", envoy: true},
		"list_not_one":    {secret: auth, files: ca(pemOf(revokedBlock, []byte("no"))), state: Broken, says: "cannot be parsed", envoy: true},
		"list_of_another": {secret: auth, files: ca(issue(t, "another", ecKey(t, elliptic.P256()), nil, nil).list(t, later)), state: Mismatch, says: "none of the authorities"},
		"list_expired":    {secret: auth, files: ca(root.list(t, earlier)), state: Expired, says: "list of revoked certificates expired"},

		"no_name":    {secret: "kubernetes://", state: Broken, says: "empty"},
		"parent":     {secret: "kubernetes://..", state: Broken, says: "dot"},
		"dots":       {secret: "kubernetes://a..b", state: Broken, says: "dot"},
		"slash":      {secret: "kubernetes://shop/c", state: Broken, says: "has a /"},
		"outside":    {secret: "kubernetes://../c", state: Broken, says: "has a /"},
		"characters": {secret: "kubernetes://a b", state: Broken, says: "letters, digits"},
		"long_name":  {secret: "kubernetes://" + strings.Repeat("a", maxName+1), state: Broken, says: "254 bytes"},
	}
}

// TestFolders: what Envoy accepts is read, and nothing else. Envoy itself judges: a secret that it
// rejects can keep other servers of its listener closed. No reason has anything of a key.
func TestFolders(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	all := folders(t)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		f := all[name]
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			at := filepath.Join(dir, name)
			put(t, filepath.Join(at, "c"), f.files)
			if f.secret == "" {
				f.secret = "kubernetes://c"
			}
			d := &Directory{Path: at}
			c, err := d.Read(f.secret)
			state, why := StateOf(err), fmt.Sprint(err)
			if err == nil {
				state, why = c.State(time.Now())
			}
			if state != f.state || !strings.Contains(why, f.says) {
				t.Fatalf("%s: %s, want %s: %s", state, why, f.state, f.says)
			}
			for _, text := range f.files {
				if key := strings.Index(text, "PRIVATE KEY-----\n"); key > 0 && len(text) > key+60 && strings.Contains(why, text[key+20:key+60]) {
					t.Errorf("the reason has the key: %s", why)
				}
			}
			if c != nil {
				if err := envoyTakes(t, string(c.Chain), string(c.Key), string(c.CA), string(c.Revoked)); err != nil {
					t.Errorf("Envoy rejects it: %v", err)
				}
				if text := fmt.Sprintf("%v %+v %#v", c, c, *c); strings.Contains(text, "PRIVATE") {
					t.Error("it prints its key")
				}
			}
			if f.envoy {
				if err := envoyTakes(t, f.files["tls.crt"], f.files["tls.key"], f.files["ca.crt"], f.files["ca.crl"]); err == nil {
					t.Error("Envoy takes what is refused")
				}
			}
		})
	}
}

// envoyTakes has a real Envoy judge a listener with a certificate, or with authorities.
func envoyTakes(tb testing.TB, chain, key, ca, revoked string) error {
	tb.Helper()
	text := func(s string) map[string]any { return map[string]any{"inline_string": s} }
	common := map[string]any{}
	if chain != "" || key != "" {
		common["tls_certificates"] = []any{map[string]any{"certificate_chain": text(chain), "private_key": text(key)}}
	}
	if ca != "" {
		validation := map[string]any{"trusted_ca": text(ca)}
		if revoked != "" {
			validation["crl"] = text(revoked)
		}
		common["validation_context"] = validation
	}
	b, err := json.Marshal(map[string]any{
		"admin": json.RawMessage(envoytest.AdminJSON),
		"static_resources": map[string]any{"clusters": []any{map[string]any{
			"name": "c", "load_assignment": map[string]any{"cluster_name": "c"},
			"transport_socket": map[string]any{"name": "tls", "typed_config": map[string]any{
				"@type":              "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
				"common_tls_context": common,
			}},
		}}},
	})
	fatal(tb, err)
	return envoytest.Validate(tb, b)
}

// TestWhereFilesAre: links of certbot and of atomic writers work, authorities have a folder of
// their own or stand beside the certificate, and the agent's own files are nobody's credential.
func TestWhereFilesAre(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	in := func(name ...string) string { return filepath.Join(append([]string{dir}, name...)...) }
	link := func(to string, at ...string) {
		t.Helper()
		fatal(t, os.Symlink(to, in(at...)))
	}
	root := issue(t, "root", ecKey(t, elliptic.P256()), nil, nil)
	pair := map[string]string{"tls.crt": root.chainPEM(), "tls.key": root.keyPEM(t), "ca.crt": root.chainPEM()}
	put(t, in("data", "..2026"), pair)
	link("..2026", "data", "..data")
	put(t, in("certbot", "archive"), map[string]string{"fullchain1.pem": root.chainPEM(), "privkey1.pem": root.keyPEM(t)})
	put(t, in("state"), pair)
	for _, name := range []string{"atomic", "bot", "own", "dangling", "pipe", "folder", "split", "split-cacert", "closed"} {
		fatal(t, os.MkdirAll(in("c", name), 0o750))
	}
	for _, file := range []string{"tls.crt", "tls.key", "ca.crt"} {
		link("../../data/..data/"+file, "c", "atomic", file)
		link(in("state", file), "c", "own", file)
		link("nowhere", "c", "dangling", file)
	}
	link("../../certbot/archive/fullchain1.pem", "c", "bot", "tls.crt")
	link("../../certbot/archive/privkey1.pem", "c", "bot", "tls.key")
	link(in("state"), "c", "whole")
	put(t, in("c", "split"), pair)
	put(t, in("c", "closed"), pair)
	fatal(t, os.Chmod(in("c", "closed", "tls.key"), 0))
	fatal(t, unix.Mkfifo(in("c", "pipe", "tls.crt"), 0o600))
	put(t, in("c", "pipe"), map[string]string{"tls.key": root.keyPEM(t)})
	fatal(t, os.MkdirAll(in("c", "folder", "tls.crt"), 0o750))
	put(t, in("c", "folder"), map[string]string{"tls.key": root.keyPEM(t)})
	put(t, dir, map[string]string{"outside": "no folder"})
	d := &Directory{Path: in("c"), Private: []string{in("state")}}
	for secret, want := range map[string]State{
		"atomic": Ready, "atomic-cacert": Ready, "bot": Ready, "bot-cacert": Missing,
		"own": Unreadable, "own-cacert": Unreadable, "whole": Unreadable,
		"dangling": Missing, "absent": Missing, "absent-cacert": Missing,
		"pipe": Unreadable, "folder": Unreadable, "split": Ready, "closed-cacert": Ready,
		// As in Istio, a folder of its own counts even if it has nothing.
		"split-cacert": Missing,
	} {
		if _, err := d.Read(Prefix + secret); StateOf(err) != want {
			t.Errorf("%s: %s (%v), want %s", secret, StateOf(err), err, want)
		}
	}
	if os.Geteuid() == 0 {
		return // may read everything
	}
	if _, err := d.Read(Prefix + "closed"); StateOf(err) != Unreadable {
		t.Errorf("a file without permission: %v", err)
	}
}

// TestLongestNames: each name that a manifest may have leads to its folder, also where the name with the
// suffix of authorities is too long for one.
func TestLongestNames(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	root := issue(t, "root", ecKey(t, elliptic.P256()), nil, nil)
	d := &Directory{Path: dir}
	for n := maxName - len(CASuffix) - 1; n <= maxName; n++ {
		name := strings.Repeat("a", n)
		put(t, filepath.Join(dir, name), map[string]string{"tls.crt": root.chainPEM(), "tls.key": root.keyPEM(t), "ca.crt": root.chainPEM()})
		for _, secret := range []string{Prefix + name, Prefix + name + CASuffix} {
			if _, err := d.Read(secret); err != nil {
				t.Errorf("%d bytes, %s: %v", n, strings.TrimLeft(secret[len(Prefix):], "a"), err)
			}
			if !slices.Contains(d.Folders(secret), filepath.Join(dir, name)) {
				t.Errorf("%d bytes: nobody watches the folder of %s", n, strings.TrimLeft(secret[len(Prefix):], "a"))
			}
		}
	}
}

// TestOpenKeysAreReported: a key that every user can read is used, and named.
func TestOpenKeysAreReported(t *testing.T) {
	t.Parallel()
	dir := envoytest.ShortDir(t) // every user may pass its parents
	root := issue(t, "root", ecKey(t, elliptic.P256()), nil, nil)
	d := &Directory{Path: dir}
	for name, c := range map[string]struct {
		parent, folder, key os.FileMode
		warnings            int
	}{
		"closed":          {0o755, 0o750, 0o640, 0},
		"open":            {0o755, 0o755, 0o644, 1},
		"open_in_closed":  {0o755, 0o750, 0o644, 0},
		"below_closed":    {0o750, 0o755, 0o644, 0},
		"writable_folder": {0o755, 0o777, 0o600, 1},
		"sticky_folder":   {0o755, 0o777 | os.ModeSticky, 0o600, 0},
	} {
		fatal(t, os.Chmod(dir, c.parent))
		folder := filepath.Join(dir, name)
		put(t, folder, map[string]string{"tls.crt": root.chainPEM(), "tls.key": root.keyPEM(t)})
		fatal(t, os.Chmod(folder, c.folder))
		fatal(t, os.Chmod(filepath.Join(folder, "tls.key"), c.key))
		got, err := d.Read(Prefix + name)
		fatal(t, err)
		if len(got.Warnings) != c.warnings || c.warnings > 0 && !strings.Contains(got.Warnings[0], folder) {
			t.Errorf("%s: %q, want %d", name, got.Warnings, c.warnings)
		}
	}
}

// TestStampsTellChanges: every change of a file, of its mode or of a link is another stamp, and
// what changed a moment ago has none.
func TestStampsTellChanges(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	root := issue(t, "root", ecKey(t, elliptic.P256()), nil, nil)
	folder := filepath.Join(dir, "c")
	d := &Directory{Path: dir}
	old := d.Stamp(Prefix+"c", time.Now())
	for what, change := range map[string]func(){
		"written": func() { put(t, folder, map[string]string{"tls.crt": root.chainPEM(), "tls.key": root.keyPEM(t)}) },
	} {
		change()
		if s := d.Stamp(Prefix+"c", time.Now()); s != "" {
			t.Errorf("%s a moment ago: %q", what, s)
		}
		if s := d.Stamp(Prefix+"c", time.Now().Add(settled)); s == "" || s == old {
			t.Errorf("%s: the same stamp", what)
		}
	}
	later := time.Now().Add(settled)
	one := d.Stamp(Prefix+"c", later)
	if again := d.Stamp(Prefix+"c", later); again != one {
		t.Error("two stamps of one state")
	}
	fatal(t, os.Chmod(filepath.Join(folder, "tls.key"), 0o640))
	two := d.Stamp(Prefix+"c", time.Now().Add(settled))
	if two == one {
		t.Error("another mode has the same stamp")
	}
	fatal(t, os.Chmod(folder, 0o777))
	if d.Stamp(Prefix+"c", time.Now().Add(settled)) == two {
		t.Error("a folder that every user can write into has the same stamp")
	}
}

// TestEndIsToldBefore: a certificate that is not replaced warns in the last tenth of its time, however long
// ago its files were read.
func TestEndIsToldBefore(t *testing.T) {
	t.Parallel()
	now := time.Now()
	const day = 24 * time.Hour
	for name, c := range map[string]struct {
		life, left time.Duration
		warnings   int
	}{
		"fresh":      {90 * day, 80 * day, 1},
		"soon":       {90 * day, 6 * day, 2},
		"short_life": {2 * day, 12 * time.Hour, 1},
		"short_soon": {2 * day, 4 * time.Hour, 2},
		"expired":    {90 * day, -time.Hour, 1}, // which the state says
	} {
		content := Content{NotBefore: now.Add(c.left - c.life), NotAfter: now.Add(c.left), Warnings: []string{"open"}}
		if got := content.WarningsAt(now); len(got) != c.warnings || len(content.Warnings) != 1 {
			t.Errorf("%s: %q, want %d", name, got, c.warnings)
		}
	}
}
