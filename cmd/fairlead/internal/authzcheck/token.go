package authzcheck

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	jwtv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/jwt_authn/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/fairlead/fairlead/xds/authn"
)

// tokenError says why a proxy refuses a token that is well signed and in time.
type tokenError struct{ why string }

func (r *tokenError) Error() string { return r.why }

// known is the metadata that a proxy has of a token whose claims are these: nothing without
// rules for tokens, or if they only check it. An error is a *tokenError.
func known(filter *jwtv3.JwtAuthentication, q Question) (*structpb.Struct, error) {
	out := &structpb.Struct{Fields: map[string]*structpb.Value{}}
	if len(filter.GetRules()) == 0 {
		return out, nil
	}
	claims := q.Claims
	issuer := claims.GetFields()["iss"].GetStringValue()
	refused := &tokenError{fmt.Sprintf("the token is refused (401): no RequestAuthentication for this workload has its issuer (iss), %q", issuer)}
	for _, name := range slices.Sorted(maps.Keys(filter.GetProviders())) {
		p := filter.GetProviders()[name]
		switch {
		case name == authn.OutputHeaders: // it accepts nothing
			continue
		case p.GetIssuer() != "" && p.GetIssuer() != issuer:
			continue
		case !q.Offline && p.GetLocalJwks() != nil && p.GetLocalJwks().GetInlineString() == "":
			refused = &tokenError{fmt.Sprintf("the token is refused (401): the proxy has no keys of the issuer %q", issuer)}
			continue
		case !audience(p.GetAudiences(), claims.GetFields()["aud"]):
			refused = &tokenError{"the token is refused (403): its audience (aud) is none of " + strings.Join(p.GetAudiences(), ", ")}
			continue
		}
		if key := p.GetPayloadInMetadata(); key != "" {
			out.Fields[key] = structpb.NewStructValue(split(claims, p.GetNormalizePayloadInMetadata().GetSpaceDelimitedClaims()))
		}
		return out, nil
	}
	return nil, refused
}

// audience reports whether a token is for one of the audiences; none means any.
func audience(audiences []string, aud *structpb.Value) bool {
	if len(audiences) == 0 {
		return true
	}
	if list := aud.GetListValue(); list != nil {
		return slices.ContainsFunc(list.GetValues(), func(v *structpb.Value) bool { return slices.Contains(audiences, v.GetStringValue()) })
	}
	return slices.Contains(audiences, aud.GetStringValue())
}

// split makes a list of the words of some claims, as Envoy does.
func split(claims *structpb.Struct, names []string) *structpb.Struct {
	out := &structpb.Struct{Fields: maps.Clone(claims.GetFields())}
	for _, name := range names {
		text, ok := out.GetFields()[name].GetKind().(*structpb.Value_StringValue)
		if !ok {
			continue
		}
		list := &structpb.ListValue{}
		for word := range strings.SplitSeq(text.StringValue, " ") {
			list.Values = append(list.Values, structpb.NewStringValue(word))
		}
		out.Fields[name] = structpb.NewListValue(list)
	}
	return out
}
