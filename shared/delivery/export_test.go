package delivery

// What the tests outside of the package, which share its world, look at.
const (
	MaxSkipped    = maxSkipped
	MaxLetterText = maxLetterText
)

// BoundText is boundText.
func BoundText(refused []Refusal) []Refusal { return boundText(refused) }

// Token is the lane's token.
func (l Lane) Token(generation, first, last int64, hash Hash, attempt int) string {
	return l.token(generation, first, last, hash, attempt)
}
