(** * Certificates: equations that hold in every structure

    The normal forms of both sides are subtracted, and denominators multiplied out.  If nothing is left,
    the sides are equal: for all inputs, sizes and indices at which both are defined. *)

From Coq Require Import List Bool ZArith QArith Qround Ring Lia.
Import ListNotations.
From PyPM.laws Require Import Structures Expressions Polynomials Powers Functions Sums.

#[local] Arguments Qred : simpl never.

(** ** Denominators *)
(** A power of a sum, its whole part multiplied out: *)
Definition grown (e : expr) (a : Q) : poly :=
  let w := Qfloor a in
  let r := Qred (a - inject_Z w) in
  pmul (times (Z.to_nat w) (norm e)) [(1, if Qeq_bool r 0 then [] else [(e, r)])].
Definition cleared (e : expr) (l : Q) (p : poly) : poly :=
  fold_right (fun t r =>
    padd (pmul [(fst t, without e (snd t))] (grown e (exponent e (snd t) - l))) r) [] p.

Definition is_sum (e : expr) : bool := match e with Add _ _ => true | _ => false end.
Fixpoint denominator (fs : mono) (p : poly) : option (expr * Q) :=
  match fs with
  | [] => None
  | (e, q) :: fs =>
      let l := if negative q then q else 0 in
      if is_sum e && (negative q || Qle_bool 1 q) && forallb (fun t => Qle_bool l (exponent e (snd t))) p
      then Some (e, l) else denominator fs p
  end.
Fixpoint is_zero (fuel : nat) (p : poly) : bool :=
  match p, fuel with
  | [], _ => true
  | _, O => false
  | _, S fuel =>
      match denominator (flat_map snd p) p with
      | None => false
      | Some (e, l) => is_zero fuel (cleared e l p)
      end
  end.

Definition rounds : nat := 8.
Definition difference (a b : expr) : poly := padd (norm a) (pscale (-1) [] (norm b)).
Definition accepted (a b : expr) : bool := is_zero rounds (difference a b).

(** ** They are right *)
Section Denotation.
Context {A : structure} (Inp : inputs A).
Add Ring A_ring : (ring_laws A).
Notation den := (den Inp).
Notation def := (def Inp).
Notation den_m := (den_m Inp).
Notation ok_m := (ok_m Inp).
Notation is_p := (is_p Inp).

Lemma grown_is I e a : def I e -> ok (den I e) a -> 0 <= a -> is_p I (grown e a) (pw (den I e) a).
Proof.
  intros D K P. unfold grown. cbv zeta. set (w := Qfloor a). set (r := Qred (a - inject_Z w)).
  assert (W : (0 <= w)%Z) by (unfold w; change 0%Z with (Qfloor 0); now apply Qfloor_resp_le).
  assert (L : inject_Z w <= a) by apply Qfloor_le.
  assert (Kw : ok (den I e) (inject_Z w)).
  { apply ok_whole; [apply whole_inject |]. change 0 with (inject_Z 0). now rewrite <- Zle_Qle. }
  assert (S := pw_minus (den I e) a (inject_Z w) K Kw L). rewrite <- (pw_red _ (a - inject_Z w)) in S.
  assert (Kr : ok (den I e) r) by now apply ok_red, ok_minus.
  fold r in S. rewrite S. apply pmul_is.
  - rewrite <- (Z2Nat.id w W) at 2. apply times_is. now apply norm_is.
  - destruct (Qeq_bool r 0) eqn:Z.
    + apply Qeq_bool_eq in Z. rewrite (pw_eq A _ _ _ Z), pw_0. split; cbn; auto. rewrite num_1. ring.
    + split; cbn; auto. rewrite num_1. ring.
Qed.
Lemma cleared_is I e l p x : def I e -> ok (den I e) l -> ok (den I e) (- l) -> is_p I p x ->
  forallb (fun t => Qle_bool l (exponent e (snd t))) p = true ->
  is_p I (cleared e l p) (mul (pw (den I e) (- l)) x).
Proof.
  intros D K K' [O <-]. induction p as [| [c m] p IH]; cbn [cleared fold_right forallb fst snd]; intros L.
  - split; cbn; auto. ring.
  - destruct O as [Om O]. apply andb_prop in L as [L L']. apply Qle_bool_iff in L.
    destruct (exponent_is Inp I e m Om) as (Ke & Ow & S).
    replace (mul (pw (den I e) (- l)) (den_p Inp I ((c, m) :: p))) with
      (add (mul (mul (num c) (den_m I (without e m))) (pw (den I e) (exponent e m - l)))
        (mul (pw (den I e) (- l)) (den_p Inp I p))).
    + apply padd_is; [| now apply IH]. apply pmul_is; [apply term_is; now split |].
      apply grown_is; auto; [now apply ok_minus | now apply (proj1 (Qle_minus_iff l _))].
    + change (den_p Inp I ((c, m) :: p)) with (add (mul (num c) (den_m I m)) (den_p Inp I p)).
      assert (E : pw (den I e) (exponent e m - l) = mul (pw (den I e) (exponent e m)) (pw (den I e) (- l)))
        by now apply pw_plus.
      rewrite E, S. ring.
Qed.
Lemma denominator_is I fs p e l : ok_m I fs -> denominator fs p = Some (e, l) ->
  def I e /\ ok (den I e) l /\ ok (den I e) (- l) /\
  forallb (fun t => Qle_bool l (exponent e (snd t))) p = true.
Proof.
  induction fs as [| [f q] fs IH]; cbn [denominator]; [discriminate |]. intros [[D K] O].
  destruct (_ && _ && _) eqn:C; [| now apply IH]. intros [= -> <-].
  apply andb_prop in C as [_ C]. split; [exact D |].
  destruct (negative q) eqn:N; [| split; [apply ok_0 | split; [apply ok_0 | exact C]]].
  split; [exact K | split; [| exact C]]. apply negative_lt in N. split.
  - intros H. exfalso. apply (Qlt_irrefl 0). apply Qlt_trans with (- q); auto.
    apply (Qopp_lt_compat q 0) in N. exact N.
  - intros H. apply K. destruct (whole q) eqn:W; auto. now rewrite (whole_opp _ W) in H.
Qed.
Lemma is_zero_is I fuel : forall p x, is_p I p x -> is_zero fuel p = true -> x = zero.
Proof.
  induction fuel as [| fuel IH]; intros [| t p] x P; cbn [is_zero]; try discriminate.
  - intros _. now destruct P.
  - intros _. now destruct P.
  - destruct (denominator _ _) as [[e l] |] eqn:E; [| discriminate]. intros Z.
    destruct (denominator_is I _ _ e l (ok_candidates Inp I _ x P) E) as (D & K & K' & L).
    pose proof (IH _ _ (cleared_is I e l _ x D K K' P L) Z) as H.
    transitivity (mul (mul (pw (den I e) l) (pw (den I e) (- l))) x).
    + rewrite pw_inverse by assumption. ring.
    + transitivity (mul (pw (den I e) l) (mul (pw (den I e) (- l)) x)); [ring |]. rewrite H. ring.
Qed.

Theorem accepted_equal a b I : accepted a b = true -> def I a -> def I b -> den I a = den I b.
Proof.
  intros H Da Db. unfold accepted, difference in H.
  assert (P : is_p I (padd (norm a) (pscale (-1) [] (norm b))) (add (den I a) (mul (mul (num (-1)) one) (den I b)))).
  { apply padd_is; [now apply norm_is |]. apply pscale_is; [now split | now apply norm_is]. }
  apply (is_zero_is I rounds _ _ P) in H.
  assert (M : num (-1) = opp (one : A)) by (rewrite <- num_1; apply (num_opp 1)).
  rewrite M in H. transitivity (add (add (den I a) (mul (mul (opp one) one) (den I b))) (den I b)); [ring |].
  rewrite H. ring.
Qed.
End Denotation.
