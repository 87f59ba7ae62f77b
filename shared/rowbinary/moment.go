package rowbinary

import "time"

// moment is what the text of a date and time says.
type moment struct {
	// seconds since 1970-01-01 00:00:00, in UTC if zoned, else on the local clock.
	seconds int64
	nanos   int64
	zoned   bool
	// beyond: there are digits other than zero behind the nanoseconds.
	beyond bool
}

// The ranges that ClickHouse documents for its types, in days and seconds since
// 1970-01-01, both ends included.
const (
	secondsPerDay    = 86400
	maxDate          = 65535                           // 2149-06-06
	minDate32        = -25567                          // 1900-01-01
	maxDate32        = 120529                          // 2299-12-31
	maxDateTime      = 1<<32 - 1                       // 2106-02-07 06:28:15 UTC
	minDateTime64    = minDate32 * secondsPerDay       // 1900-01-01 00:00:00
	maxDateTime64    = (maxDate32+1)*secondsPerDay - 1 // 2299-12-31 23:59:59
	maxSecondsNanos  = 9223372036                      // the last second in 63 bits of nanoseconds
	maxNanos         = 854775807                       // the last nanosecond of it
	maxZoneHours     = 23
	minutesPerHour   = 60
	secondsPerMinute = 60
	secondsPerHour   = 3600
	nanosDigits      = 9
)

const dateLength = len("2006-01-02")

// parseDate reads "2006-01-02" as days since 1970-01-01 and checks the calendar.
func parseDate(s []byte) (days int64, ok bool) {
	if len(s) != dateLength || s[4] != '-' || s[7] != '-' {
		return 0, false
	}
	y1, ok1 := twoDigits(s, 0)
	y2, ok2 := twoDigits(s, 2)
	month, ok3 := twoDigits(s, 5)
	day, ok4 := twoDigits(s, 8)
	year := y1*100 + y2
	if !ok1 || !ok2 || !ok3 || !ok4 || month < 1 || month > 12 || day < 1 || day > monthDays(year, month) {
		return 0, false
	}
	return daysFromCivil(year, month, day), true
}

func twoDigits(s []byte, i int) (int64, bool) {
	a, b := s[i]-'0', s[i+1]-'0'
	return int64(a)*10 + int64(b), a <= 9 && b <= 9
}

func monthDays(year, month int64) int64 {
	switch month {
	case 2:
		if year%4 == 0 && (year%100 != 0 || year%400 == 0) {
			return 29
		}
		return 28
	case 4, 6, 9, 11:
		return 30
	}
	return 31
}

// daysFromCivil counts days since 1970-01-01 in the proleptic Gregorian calendar
// (H. Hinnant, "chrono-Compatible Low-Level Date Algorithms"), for years from 0.
func daysFromCivil(year, month, day int64) int64 {
	if month <= 2 {
		year--
		month += 12
	}
	era := (year + 400) / 400 // year can be -1
	ofEra := year + 400 - era*400
	ofYear := (153*(month-3)+2)/5 + day - 1
	return (era-1)*146097 + ofEra*365 + ofEra/4 - ofEra/100 + ofYear - 719468
}

// parseMoment reads RFC 3339, ISO 8601's extended form (the zone as Z, +02,
// +0200 or +02:00, or none), and both with a space for the T. Seconds must be
// there; a leap second or an hour of 24 is refused: the column has none.
func parseMoment(s []byte) (m moment, ok bool) {
	const clock = dateLength + len("T15:04:05")
	if len(s) < clock {
		return m, false
	}
	days, ok := parseDate(s[:dateLength])
	if c := s[dateLength]; !ok || c != 'T' && c != ' ' && c != 't' || s[13] != ':' || s[16] != ':' {
		return m, false
	}
	hour, ok1 := twoDigits(s, 11)
	minute, ok2 := twoDigits(s, 14)
	second, ok3 := twoDigits(s, 17)
	if !ok1 || !ok2 || !ok3 || hour > 23 || minute > 59 || second > 59 {
		return m, false
	}
	m.seconds = days*secondsPerDay + hour*secondsPerHour + minute*secondsPerMinute + second
	s, ok = m.fraction(s[clock:])
	return m, ok && m.zone(s)
}

// fraction reads ".123" or ",123" (ISO 8601 has both) and returns what is left.
func (m *moment) fraction(s []byte) ([]byte, bool) {
	if len(s) == 0 || s[0] != '.' && s[0] != ',' {
		return s, true
	}
	i := 1
	for ; i < len(s) && s[i]-'0' <= 9; i++ {
		switch {
		case i <= nanosDigits:
			m.nanos = m.nanos*10 + int64(s[i]-'0')
		case s[i] != '0':
			m.beyond = true
		}
	}
	for n := i; n <= nanosDigits; n++ {
		m.nanos *= 10
	}
	return s[i:], i > 1
}

func (m *moment) zone(s []byte) bool {
	switch {
	case len(s) == 0:
		return true
	case len(s) == 1 && s[0]|0x20 == 'z':
		m.zoned = true
		return true
	case s[0] != '+' && s[0] != '-' || len(s) != 3 && len(s) != 5 && (len(s) != 6 || s[3] != ':'):
		return false
	}
	hours, ok := twoDigits(s, 1)
	minutes := int64(0)
	if ok && len(s) > 3 {
		minutes, ok = twoDigits(s, len(s)-2)
	}
	if !ok || hours > maxZoneHours || minutes >= minutesPerHour {
		return false
	}
	offset := hours*secondsPerHour + minutes*secondsPerMinute
	if s[0] == '-' {
		offset = -offset
	}
	m.seconds -= offset
	m.zoned = true
	return true
}

// zoneSpan is a stretch of time in which a zone's offset does not change; a
// Writer keeps the last one it needed.
type zoneSpan struct {
	zone       *time.Location
	start, end int64
	offset     int64
}

// clockMargin is more than any two zones' offsets differ: further than this from
// a change of the clock, a local time has one meaning.
const clockMargin = 2 * secondsPerDay

// instant finds the instant (seconds, UTC) at which the clock of zone shows the
// local time. A time that the clock leaves out has none; of two, the earlier.
func (z *zoneSpan) instant(local int64, zone *time.Location) (utc int64, ok bool) {
	if zone == nil {
		return local, true
	}
	utc = local - z.offset
	if z.zone == zone && utc >= z.start+clockMargin && utc < z.end-clockMargin {
		return utc, true
	}
	// The offsets in force a day before and a day after cover every meaning, and
	// where both give one, the offset before gives the earlier.
	for _, near := range [2]int64{local - secondsPerDay, local + secondsPerDay} {
		utc = local - z.offsetAt(near, zone)
		if z.offsetAt(utc, zone) == local-utc {
			return utc, true
		}
	}
	return 0, false
}

// offsetAt is the offset of zone at an instant; it remembers the span around.
func (z *zoneSpan) offsetAt(utc int64, zone *time.Location) int64 {
	if z.zone == zone && utc >= z.start && utc < z.end {
		return z.offset
	}
	const forever = 1 << 60
	t := time.Unix(utc, 0).In(zone)
	_, offset := t.Zone()
	start, end := t.ZoneBounds()
	*z = zoneSpan{zone: zone, start: -forever, end: forever, offset: int64(offset)}
	if !start.IsZero() {
		z.start = start.Unix()
	}
	if !end.IsZero() {
		z.end = end.Unix()
	}
	return z.offset
}

// pow10 is 10^n for n up to 18.
func pow10(n int) int64 {
	p := int64(1)
	for range n {
		p *= 10
	}
	return p
}
