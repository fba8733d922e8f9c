package registry

import (
	"maps"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	security "istio.io/api/security/v1beta1"

	"github.com/fairlead/fairlead/registry/mesh"
)

// fakeKeys has the keys that a test gives it.
type fakeKeys struct {
	changed chan struct{}

	mu      sync.Mutex // guards all following fields
	wanted  []mesh.KeyRequest
	sets    map[mesh.KeyLocation]string // of issuers that answered
	made    map[mesh.KeyLocation]string // current
	current *mesh.KeySets
	settled bool
}

func newFakeKeys() *fakeKeys {
	return &fakeKeys{changed: make(chan struct{}, 1), sets: map[mesh.KeyLocation]string{}}
}

func (k *fakeKeys) Want(list []mesh.KeyRequest) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.wanted, k.settled = list, true
	for _, r := range list {
		_, have := k.sets[r.Location]
		k.settled = k.settled && have
	}
	k.make()
}

// make makes what is in force: the keys that are wanted.
func (k *fakeKeys) make() {
	sets := map[mesh.KeyLocation]string{}
	for _, r := range k.wanted {
		if set := k.sets[r.Location]; set != "" {
			sets[r.Location] = set
		}
	}
	if k.current == nil || !maps.Equal(sets, k.made) {
		k.current, k.made = mesh.NewKeySets(sets), sets
	}
}

func (k *fakeKeys) Current() (*mesh.KeySets, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.current, k.settled
}

func (k *fakeKeys) Changed() <-chan struct{} { return k.changed }

// give is an issuer's answer; empty means that it failed.
func (k *fakeKeys) give(uri, keys string) {
	k.mu.Lock()
	k.sets[mesh.KeyLocation{URI: uri, Private: true}] = keys
	k.settled = true
	k.make()
	k.mu.Unlock()
	notify(k.changed)
}

func tokens(name, uri string) *mesh.Fragment {
	return &mesh.Fragment{Workloads: workloads("a", 0, 1, "x"), RequestAuthentications: []*mesh.RequestAuthentication{{
		Meta: meta(mesh.KindRequestAuthentication, "shop", name, uri), Keys: []string{""},
		Spec: &security.RequestAuthentication{JwtRules: []*security.JWTRule{{Issuer: uri, JwksUri: uri}}},
	}}}
}

func (x *running) keys(want string) {
	x.t.Helper()
	var list []string
	for _, r := range x.Snapshot().RequestAuthentications {
		list = append(list, r.Spec.GetJwtRules()[0].GetJwksUri()+"="+r.Keys[0])
	}
	if got := strings.Join(list, " "); got != want {
		x.t.Errorf("the snapshot has %s, want %s", got, want)
	}
}

// TestConfigurationWaitsForKeys: nothing is published that would have good tokens refused,
// until the issuers have been asked, or too long have not answered.
func TestConfigurationWaitsForKeys(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, k := newFakeSource("a"), newFakeKeys()
		x := run(t, Config{Sources: []Source{a}, KeySets: k, DebounceAfter: 100 * time.Millisecond})
		a.say(tokens("t", "u"))
		x.want(keysWait-time.Second, 0, "keys of the start are awaited")
		k.give("u", "1")
		x.want(0, 1, "they are there")
		x.keys("u=1")

		// Other issuer: the one before keeps its keys until the other has its.
		a.say(tokens("t", "v"))
		x.want(keysWait/2, 0, "keys of another issuer are awaited")
		x.keys("u=1")
		a.say(&mesh.Fragment{Workloads: workloads("a", 0, 2, "x"), RequestAuthentications: tokens("t", "v").RequestAuthentications})
		x.want(time.Second, 1, "endpoints do not wait")
		x.keys("u=1")
		k.give("v", "2")
		x.want(time.Millisecond, 1, "they are there")
		x.keys("v=2")

		// One that does not answer.
		a.say(tokens("t", "w"))
		x.want(keysWait-time.Second, 1, "removed endpoints only")
		x.keys("v=2")
		x.want(time.Second+time.Millisecond, 1, "it was waited for long enough")
		x.keys("w=")
		k.give("w", "3")
		x.want(10*time.Millisecond, 1, "keys that come later are pushed by themselves")
		x.keys("w=3")
	})
}

// TestKeysArePushedAtOnce: a key that an issuer took back is refused before the next change of
// configuration.
func TestKeysArePushedAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, k := newFakeSource("a"), newFakeKeys()
		x := run(t, Config{Sources: []Source{a}, KeySets: k, DebounceAfter: time.Hour, DebounceMax: 2 * time.Hour})
		k.give("u", "1")
		a.say(tokens("t", "u"))
		x.want(0, 1, "keys that are there")
		x.keys("u=1")
		more := tokens("t", "u")
		more.VirtualServices = []*mesh.VirtualService{virtualService("v", "1")}
		a.say(more)
		x.want(time.Second, 0, "configuration is debounced")
		k.give("u", "2")
		x.want(10*time.Millisecond, 1, "keys are not")
		x.keys("u=2")
		if n := len(x.Snapshot().VirtualServices); n != 0 {
			t.Error("configuration came with them")
		}
		k.give("u", "2")
		x.want(time.Second, 0, "the same keys")
		k.give("u", "")
		x.want(10*time.Millisecond, 1, "keys that are gone")
		x.keys("u=")
	})
}

// TestStartWithoutAnIssuer: an issuer that is away delays the start for a bounded time.
func TestStartWithoutAnIssuer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, b, k := newFakeSource("a"), newFakeSource("b"), newFakeKeys()
		x := run(t, Config{Sources: []Source{a, b}, KeySets: k})
		a.say(tokens("t", "u"))
		x.want(30*time.Second, 0, "a source is missing")
		b.say(tokens("s", "v"))
		x.want(keysWait-time.Millisecond, 0, "keys are awaited")
		x.want(2*time.Millisecond, 1, "no longer")
	})
}

// TestWithoutIssuersNothingIsAwaited.
func TestWithoutIssuersNothingIsAwaited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, k := newFakeSource("a"), newFakeKeys()
		x := run(t, Config{Sources: []Source{a}, KeySets: k})
		a.say(&mesh.Fragment{Workloads: workloads("a", 0, 1, "x")})
		x.want(0, 1, "at once")
	})
}
