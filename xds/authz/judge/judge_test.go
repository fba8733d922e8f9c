package judge_test

import (
	"errors"
	"testing"

	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"

	"github.com/fairlead/fairlead/xds/authz/judge"
)

func one(p *rbacv3.Principal) *rbacv3.RBAC {
	return &rbacv3.RBAC{Policies: map[string]*rbacv3.Policy{"p": {
		Permissions: []*rbacv3.Permission{{Rule: &rbacv3.Permission_Any{Any: true}}}, Principals: []*rbacv3.Principal{p},
	}}}
}

// TestUnknownFormsAreErrors has forms that the judge does not know be errors, also where the
// rest of the rules decides already.
func TestUnknownFormsAreErrors(t *testing.T) {
	t.Parallel()
	anyone := &rbacv3.Principal{Identifier: &rbacv3.Principal_Any{Any: true}}
	for name, p := range map[string]*rbacv3.Principal{
		"nothing":      {},
		"filter_state": {Identifier: &rbacv3.Principal_FilterState{FilterState: &matcherv3.FilterStateMatcher{Key: "k"}}},
		"no_matcher":   {Identifier: &rbacv3.Principal_Authenticated_{Authenticated: &rbacv3.Principal_Authenticated{}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			either := &rbacv3.Principal{Identifier: &rbacv3.Principal_OrIds{OrIds: &rbacv3.Principal_Set{Ids: []*rbacv3.Principal{anyone, p}}}}
			if v, err := judge.Evaluate(one(either), judge.Request{}); !errors.Is(err, judge.ErrUnknown) || v.Allowed {
				t.Errorf("got %v and %v: want %v", v, err, judge.ErrUnknown)
			}
		})
	}
}

// TestBrokenTextMatchesNoExpression has text that is not UTF-8 match no regular expression,
// as in Envoy's library.
func TestBrokenTextMatchesNoExpression(t *testing.T) {
	t.Parallel()
	p := &rbacv3.Principal{Identifier: &rbacv3.Principal_Authenticated_{Authenticated: &rbacv3.Principal_Authenticated{
		PrincipalName: &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_SafeRegex{SafeRegex: &matcherv3.RegexMatcher{Regex: ".+"}}},
	}}}
	for uri, want := range map[string]bool{"spiffe://a/b": true, "spiffe://a/\xff": false} {
		v, err := judge.Evaluate(one(p), judge.Request{Peer: &judge.Peer{URIs: []string{uri}}})
		if err != nil || v.Allowed != want {
			t.Errorf("%q: got %v and %v, want %v", uri, v.Allowed, err, want)
		}
	}
}
