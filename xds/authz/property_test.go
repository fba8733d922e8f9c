package authz_test

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"testing"

	"google.golang.org/protobuf/proto"
	security "istio.io/api/security/v1beta1"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// encoded are the bytes of all that is made of policies.
func encoded(tb testing.TB, s ruleset) []byte {
	tb.Helper()
	var out []byte
	add := func(m proto.Message) {
		body, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
		fatalIf(tb, err, "encoding")
		out = append(append(out, body...), 0xff)
	}
	for _, set := range s.HTTP.InOrder() {
		add(set.HTTPFilter())
	}
	for _, set := range s.TCP.InOrder() {
		add(set.NetworkFilter())
	}
	return fmt.Append(out, s.HTTP.Faults, s.TCP.Faults)
}

// amount is how much of a property is tried: less in the fast tier.
func amount(short, full int) int {
	if testing.Short() {
		return short
	}
	return full
}

// TestOrderOfPoliciesChangesNothing has policies in any order make the same bytes.
func TestOrderOfPoliciesChangesNothing(t *testing.T) {
	t.Parallel()
	for seed := range amount(60, 300) {
		d := newDice(seed)
		d.strange = seed%2 == 0
		policies, o := d.policies(), d.options()
		want := encoded(t, rulesOf(policies, o))
		for range 3 {
			d.Shuffle(len(policies), func(i, k int) { policies[i], policies[k] = policies[k], policies[i] })
			if got := encoded(t, rulesOf(policies, o)); !bytes.Equal(got, want) {
				t.Fatalf("seed %d: the order of policies changes what is made of them", seed)
			}
		}
	}
}

// TestPoliciesAreNotWrittenTo has the input as it was: policies are shared.
func TestPoliciesAreNotWrittenTo(t *testing.T) {
	t.Parallel()
	for seed := range amount(30, 100) {
		d := newDice(seed)
		policies, o := d.policies(), d.options()
		before := make([]proto.Message, 0, len(policies))
		for _, p := range policies {
			before = append(before, proto.Clone(p.Spec))
		}
		rulesOf(policies, o)
		for i, p := range policies {
			if !proto.Equal(p.Spec, before[i]) {
				t.Fatalf("seed %d: policy %d was changed", seed, i)
			}
		}
	}
}

// TestStrangePoliciesAreValid has whatever policies say pass the rules of Envoy's messages.
func TestStrangePoliciesAreValid(t *testing.T) {
	t.Parallel()
	made := 0
	for seed := 0; made < amount(300, 5000); seed++ {
		d := newDice(seed)
		d.strange = true
		policies := d.policies()
		made += len(policies)
		s := rulesOf(policies, d.options())
		for _, set := range append(s.HTTP.InOrder(), s.TCP.InOrder()...) {
			if err := set.HTTPFilter().ValidateAll(); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			if err := set.NetworkFilter().ValidateAll(); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
		}
		encoded(t, s)
	}
}

// TestEnvoysAcceptStrangePolicies has real Envoys start with whatever policies say. One that
// they refuse would keep all of a listener as it was.
func TestEnvoysAcceptStrangePolicies(t *testing.T) {
	t.Parallel()
	sets := map[string]ruleset{}
	made := 0
	for seed := 0; made < 200; seed++ {
		d := newDice(seed)
		d.strange = true
		policies := d.policies()
		made += len(policies)
		sets[strconv.Itoa(seed)] = rulesOf(policies, d.options())
	}
	for _, version := range envoytest.Versions() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, version, sets)
			if got, want := len(l.addresses), 2*len(sets); got != want {
				t.Errorf("%d listeners: want %d", got, want)
			}
		})
	}
}

// TestJudgeAgreesWithEnvoy asks both about random policies and requests.
func TestJudgeAgreesWithEnvoy(t *testing.T) {
	t.Parallel()
	const (
		families = 50
		requests = 2000
	)
	ipv6 := hasIPv6()
	for _, version := range envoytest.Ends() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			sets := map[string]ruleset{}
			for seed := range families {
				d := newDice(seed)
				d.joins = joinsHeaders(version)
				sets[strconv.Itoa(seed)] = rulesOf(d.policies(), d.options())
			}
			l := newLab(t, version, sets)
			seeds := make([]int, requests)
			for i := range seeds {
				seeds[i] = i
			}
			answers := make([]answer, requests)
			err := each(seeds, func(i int) error {
				r, set := newDice(i).request(ipv6), strconv.Itoa(i%families)
				got, err := l.ask(t, set, r)
				if err != nil {
					return fmt.Errorf("request %d (%v): %w", i, question{request: r}, err)
				}
				answers[i] = got
				want := judged(t, sets[set], r)
				if r.TCP {
					want.Policy = ""
				}
				if got.Allowed != want.Allowed || got.Policy != want.Policy || fmt.Sprint(got.Shadows) != fmt.Sprint(want.Shadows) && !r.TCP {
					return fmt.Errorf("request %d (%v): Envoy says %v, the judge %v", i, question{request: r}, got, want)
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
			allowed := 0
			for _, a := range answers {
				if a.Allowed {
					allowed++
				}
			}
			if allowed < requests/10 || allowed > requests*9/10 {
				t.Errorf("%d of %d requests were allowed: they say little", allowed, requests)
			}
		})
	}
}

// TestAnotherDenyAllowsNothingMore and the next test are what people rely on when they add a
// policy.
func TestAnotherDenyAllowsNothingMore(t *testing.T) {
	t.Parallel()
	denied := 0
	for seed := range amount(40, 400) {
		d := newDice(seed)
		d.strange = seed%4 == 0
		policies, o := d.policies(), d.options()
		before, after := rulesOf(policies, o), rulesOf(append(slices.Clone(policies), d.policy("more", security.AuthorizationPolicy_DENY)), o)
		for range 20 {
			r := d.request(true)
			was, is := judged(t, before, r), judged(t, after, r)
			if is.Allowed && !was.Allowed {
				t.Fatalf("seed %d: %v is allowed because of a DENY", seed, question{request: r})
			}
			if was.Allowed && !is.Allowed {
				denied++
			}
		}
	}
	if denied == 0 {
		t.Error("no DENY denied anything")
	}
}

// TestAnotherAllowDeniesNothingMore adds a rule to an ALLOW policy, and an ALLOW policy
// beside one.
func TestAnotherAllowDeniesNothingMore(t *testing.T) {
	t.Parallel()
	allowed := 0
	for seed := range amount(40, 400) {
		d := newDice(seed)
		d.strange = seed%4 == 0
		first := d.policy("first", security.AuthorizationPolicy_ALLOW)
		policies, o := append(d.policies(), first), d.options()
		before := rulesOf(policies, o)
		longer := slices.Clone(policies)
		spec, ok := proto.Clone(first.Spec).(*security.AuthorizationPolicy)
		if !ok {
			t.Fatal("a clone is of another type")
		}
		spec.Rules = append(spec.GetRules(), d.rule())
		longer[len(longer)-1].Spec = spec
		for _, after := range []ruleset{
			rulesOf(longer, o), rulesOf(append(slices.Clone(policies), d.policy("more", security.AuthorizationPolicy_ALLOW)), o),
		} {
			for range 20 {
				r := d.request(true)
				was, is := judged(t, before, r), judged(t, after, r)
				if was.Allowed && !is.Allowed {
					t.Fatalf("seed %d: %v is denied because of an ALLOW", seed, question{request: r})
				}
				if is.Allowed && !was.Allowed {
					allowed++
				}
			}
		}
	}
	if allowed == 0 {
		t.Error("no ALLOW allowed anything")
	}
}
